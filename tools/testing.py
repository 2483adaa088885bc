"""All tests in two lanes that do not disturb each other: fast ones and real CRIU in one, real vLLM in the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tools import checks, models, setup
from tools.cache import ROOT
from tools.steps import StepFailed, say

NOTHING_SELECTED = 5
"""pytest's exit status when its selection is empty."""
_COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected)")


@dataclass(frozen=True)
class Group:
    """Tests that run in one pytest process."""

    name: str
    marks: str
    subnet: str
    """Sandboxes of different lanes take their addresses from different networks."""


FAST = Group("fast", checks.FAST_MARKS, "10.231.0.0/17")
SANDBOX = Group("sandbox", "root and not criu and not vllm", "10.231.0.0/17")
CRIU = Group("criu", "criu and not vllm", "10.231.0.0/17")
VLLM = Group("vllm", "vllm", "10.231.128.0/17")
GROUPS = {group.name: group for group in (FAST, SANDBOX, CRIU, VLLM)}
STATIC = "static"
NAMES = (STATIC, *GROUPS)


@dataclass
class Outcome:
    """How one group ended."""

    name: str
    status: int
    seconds: float
    closing: str
    output: str

    @property
    def bad(self) -> bool:
        """True if it speaks against the change."""
        return self.status not in (0, NOTHING_SELECTED)


def run(names: Sequence[str], arguments: Sequence[str], *, one_by_one: bool) -> int:
    """Run the named groups; ``arguments`` go to pytest.  Returns the exit status."""
    outcomes: list[Outcome] = []
    errors: list[StepFailed] = []
    real = [name for name in names if name in (SANDBOX.name, CRIU.name, VLLM.name)]
    if real and os.geteuid() != 0:
        raise StepFailed("./dev test", "real sandboxes need root", "run it as root, or ./dev check for the rest")

    def lane(members: Sequence[str]) -> None:
        try:
            for name in members:
                outcomes.append(_run_one(name, arguments))
                _tell(outcomes[-1])
        except StepFailed as failure:
            errors.append(failure)

    if real:
        setup.ensure(tests=True)
    lanes = [[name for name in names if name != VLLM.name], [name for name in names if name == VLLM.name]]
    if one_by_one:
        lanes = [lanes[0] + lanes[1]]
    threads = [threading.Thread(target=lane, args=(members,)) for members in lanes if members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _summary(sorted(outcomes, key=lambda outcome: NAMES.index(outcome.name)), errors)


def _run_one(name: str, arguments: Sequence[str]) -> Outcome:
    began = time.monotonic()
    if name == STATIC:
        good, output = checks.run_quietly(checks.static_checks())
        closing = output.splitlines()[-1] if output else ""
        return Outcome(name, 0 if good else 1, time.monotonic() - began, closing, output)
    group = GROUPS[name]
    if group is VLLM:
        setup.ensure(vllm=True, model_names=(models.SMOLLM2, models.TINY2))
    command = [sys.executable, "-m", "pytest", "-m", group.marks, "--durations=5", *arguments]
    environment = {**os.environ, **setup.environment(), "HOTSTART_SUBNET": group.subnet, "COLUMNS": "120"}
    with tempfile.TemporaryFile("w+") as out:
        status = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
        ).returncode
        out.seek(0)
        output = out.read()
    return Outcome(name, status, time.monotonic() - began, _closing(output), output)


def _closing(output: str) -> str:
    """pytest's last line with counts, without its ruler (pure)."""
    lines = [line.strip("= ") for line in output.splitlines() if _COUNTS.search(line) or "no tests ran" in line]
    return lines[-1] if lines else ""


def _tell(outcome: Outcome) -> None:
    word = "failed" if outcome.bad else "none" if outcome.status == NOTHING_SELECTED else "ok"
    say(f"  {word:<7} {outcome.name:<9} {outcome.seconds:7.1f} s   {outcome.closing}")


def _summary(outcomes: list[Outcome], errors: list[StepFailed]) -> int:
    for outcome in outcomes:
        if outcome.bad:
            say(f"\n--- {outcome.name}\n{outcome.output.rstrip()}")
    say("\nGROUP      RESULT      SECONDS  TESTS")
    for outcome in outcomes:
        result = "failed" if outcome.bad else "none" if outcome.status == NOTHING_SELECTED else "passed"
        say(f"{outcome.name:<10} {result:<10} {outcome.seconds:8.1f}  {outcome.closing}")
    for failure in errors:
        say(failure.line())
    if not errors and all(outcome.status == NOTHING_SELECTED for outcome in outcomes):
        say("no test matches the selection")
        return NOTHING_SELECTED
    return 1 if errors or any(outcome.bad for outcome in outcomes) else 0
