"""How long the worker took to become ready: seconds since its launcher, or else its own process, started."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hotstart.names import ROOT_PID


def seconds_since_start() -> float:
    """Age of the worker in seconds, with the resolution of /proc (10 ms).

    In a sandbox the clock starts with the launcher (pid ROOT_PID, child of the supervisor), which execs or starts the
    worker's command; anywhere else with the calling process.
    """
    pid = os.getpid()
    ancestor, parent = pid, _parent_and_start(pid)[0]
    while parent > 1:
        ancestor, parent = parent, _parent_and_start(parent)[0]
    started = _parent_and_start(ancestor if ancestor == ROOT_PID else pid)[1]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def _parent_and_start(pid: int) -> tuple[int, float]:
    # The command name may hold blanks and parentheses: fields are counted from the last ")".
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[1]), int(fields[19]) / os.sysconf("SC_CLK_TCK")
