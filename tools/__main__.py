"""The commands of ./dev behind its first lines of bash: python -m tools COMMAND."""

from __future__ import annotations

import argparse
import sys

from tools import checks
from tools.steps import StepFailed


def check(arguments: list[str]) -> int:
    """Everything that can be checked without root."""
    parser = argparse.ArgumentParser(prog="./dev check", description=check.__doc__)
    parser.add_argument("--fix", action="store_true", help="first let ruff repair format and lint")
    if parser.parse_args(arguments).fix:
        checks.fix()
    return 0 if checks.run_together([*checks.static_checks(), checks.fast_tests()]) else 1


COMMANDS = {"check": check}


def main() -> int:
    """Run one command; a failed step is one line, not a traceback."""
    try:
        return COMMANDS[sys.argv[1]](sys.argv[2:])
    except StepFailed as failure:
        sys.stderr.write(failure.line() + "\n")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
