"""The commands of ./dev behind its first lines of bash: python -m tools COMMAND."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys

from tools import checks, locks, models, reasons_page, setup, testing
from tools.cache import ROOT
from tools.steps import StepFailed, say


def do_setup(arguments: list[str]) -> int:
    """Bring the machine to where tests, demo and benchmark run; what is there already costs no time."""
    parser = argparse.ArgumentParser(prog="./dev setup", description=do_setup.__doc__)
    parser.add_argument("--vllm", action="store_true", help="also vLLM for the CPU (3 GB)")
    parser.add_argument(
        "--models", action="store_true", help="also the models of demo and benchmark (1.3 GB; implies --vllm)"
    )
    parser.add_argument("--tests", action="store_true", help="also the Debian packages that only tests want")
    options = parser.parse_args(arguments)
    setup.ensure(vllm=options.vllm, model_names=models.ALL if options.models else (), tests=options.tests)
    say('all there; .venv/bin/hotstart is the command line, eval "$(./dev env)" points it at what was set up')
    return 0


def do_check(arguments: list[str]) -> int:
    """Everything that can be checked without root."""
    parser = argparse.ArgumentParser(prog="./dev check", description=do_check.__doc__)
    parser.add_argument("--fix", action="store_true", help="first let ruff repair format and lint")
    if parser.parse_args(arguments).fix:
        checks.fix()
    good, report = checks.run_quietly([*checks.static_checks(), checks.fast_tests()])
    say(report)
    return 0 if good else 1


def do_test(arguments: list[str]) -> int:
    """All tests: static checks and fast tests, real sandboxes, real CRIU, and beside them real vLLM."""
    parser = argparse.ArgumentParser(prog="./dev test", description=do_test.__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"only these: {', '.join(testing.NAMES)}")
    parser.add_argument("-k", metavar="EXPR", help="only tests whose name matches (pytest's -k)")
    parser.add_argument("-x", action="store_true", help="stop a group at its first failure")
    parser.add_argument("--one-by-one", action="store_true", help="not two lanes at the same time")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.groups if name not in testing.NAMES]:
        parser.error(f"no group {unknown[0]}; there are {', '.join(testing.NAMES)}")
    names = options.groups or [name for name in testing.NAMES if not (options.k and name == testing.STATIC)]
    passed_on = [*(["-k", options.k] if options.k else []), *(["-x"] if options.x else [])]
    return testing.run(names, passed_on, one_by_one=options.one_by_one)


def do_demo(arguments: list[str]) -> int:
    """A real vLLM worker is captured, killed, and comes back three times."""
    return _benchmark("demo", arguments, (models.SMOLLM2,))


def do_bench(arguments: list[str]) -> int:
    """Cold start, stock CRIU and Hotstart of the same worker, interleaved in one run."""
    if arguments[:1] != ["restore"] and not _wants_help(arguments):
        raise StepFailed("./dev bench", "which one?", "./dev bench restore")
    rest = arguments[1:] if arguments[:1] == ["restore"] else arguments
    return _benchmark("restore", rest, (models.SMOLLM2, models.QWEN3))


def do_docs(arguments: list[str]) -> int:
    """Write the generated pages."""
    argparse.ArgumentParser(prog="./dev docs", description=do_docs.__doc__).parse_args(arguments)
    reasons_page.write()
    from hotstart.snapshot_agent.cli import reference  # click and rich: no other command needs them

    (ROOT / "docs" / "cli.md").write_text(reference.markdown())
    return 0


def do_lock(arguments: list[str]) -> int:
    """Resolve the Python dependencies anew."""
    argparse.ArgumentParser(prog="./dev lock", description=do_lock.__doc__).parse_args(arguments)
    locks.write()
    return 0


def do_env(arguments: list[str]) -> int:
    """Print the variables that point at what set-up has made, for a shell to evaluate."""
    argparse.ArgumentParser(prog="./dev env", description=do_env.__doc__).parse_args(arguments)
    for name, value in setup.environment().items():
        say(f"export {name}={shlex.quote(value)}")
    if missing := sorted(setup.environment().keys() - setup.found().keys()):
        sys.stderr.write(f"not there yet: {', '.join(missing)}; ./dev setup --models makes them\n")
    say(f'export PATH={shlex.quote(str(ROOT / ".venv" / "bin"))}:"$PATH"')
    return 0


def _benchmark(module: str, arguments: list[str], names: tuple[str, ...]) -> int:
    if not _wants_help(arguments):
        if os.geteuid() != 0:
            raise StepFailed(f"./dev {module}", "real sandboxes need root", "run it as root")
        setup.ensure(vllm=True, model_names=names)
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **setup.environment()}, check=False).returncode


def _wants_help(arguments: list[str]) -> bool:
    return bool({"-h", "--help"} & set(arguments))


COMMANDS = {
    "setup": do_setup,
    "check": do_check,
    "test": do_test,
    "demo": do_demo,
    "bench": do_bench,
    "docs": do_docs,
    "lock": do_lock,
    "env": do_env,
}


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
