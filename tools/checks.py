"""The checks that need no root, side by side: format, lint, types, import contracts, fast tests (./dev check)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tools.cache import ROOT

BIN = Path(sys.executable).parent
FAST_DIRECTORIES = ("tests/unit", "tests/contract", "tests/architecture", "tests/properties", "tests/readme")
FAST_MARKS = "not root and not criu and not vllm"


@dataclass(frozen=True)
class Check:
    """One command; all it says is shown only if it fails."""

    name: str
    command: tuple[str, ...]


def static_checks() -> list[Check]:
    """Everything that reads the code without running it."""
    packages = [name for name in ("hotstart", "tools", "benchmarks") if (ROOT / name / "__init__.py").exists()]
    return [
        Check("types", (str(BIN / "mypy"), *(word for name in packages for word in ("-p", name)))),
        Check("format", (str(BIN / "ruff"), "format", "--check", ".")),
        Check("lint", (str(BIN / "ruff"), "check", "--quiet", ".")),
        Check("import contracts", (str(BIN / "lint-imports"), "--no-logo")),
    ]


def fast_tests() -> Check:
    """Tests that need no root and little time."""
    directories = [name for name in FAST_DIRECTORIES if (ROOT / name).is_dir()]
    return Check("fast tests", (sys.executable, "-m", "pytest", "-m", FAST_MARKS, *directories))


def run_quietly(checks: list[Check]) -> tuple[bool, str]:
    """Run the checks at the same time; whether all are good, and the report with the words of those that are not."""
    began = time.monotonic()
    environment = {**os.environ, "COLUMNS": "120"}
    running = {
        check: subprocess.Popen(
            check.command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for check in checks
    }
    outputs = {check: process.communicate()[0] for check, process in running.items()}
    failed = [check for check, process in running.items() if process.returncode]
    report = []
    for check in checks:
        last = "" if check in failed else (outputs[check].strip().splitlines() or [""])[-1]
        report.append(f"  {'failed' if check in failed else 'ok':<7} {check.name:<18} {last}".rstrip())
    report += [f"\n--- {check.name}: {' '.join(check.command)}\n{outputs[check].rstrip()}\n" for check in failed]
    report.append(f"{len(checks) - len(failed)} of {len(checks)} checks good, {time.monotonic() - began:.1f} s")
    return not failed, "\n".join(report)


def fix() -> None:
    """Let ruff repair what it can."""
    subprocess.run([BIN / "ruff", "check", "--quiet", "--fix", "."], cwd=ROOT, check=False)
    subprocess.run([BIN / "ruff", "format", "--quiet", "."], cwd=ROOT, check=False)
