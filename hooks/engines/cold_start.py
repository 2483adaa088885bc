"""How long the worker took to become ready: seconds since its launcher, or else its own process, started."""

from __future__ import annotations

import os
import time

from hotstart.linux import procfs
from hotstart.names import ROOT_PID


def seconds_since_start() -> float:
    """Age of the worker in seconds, with the resolution of /proc (10 ms).

    In a sandbox the clock starts with the launcher (pid ROOT_PID, child of the supervisor), which execs or starts the
    worker's command; anywhere else with the calling process.
    """
    own = procfs.stat("self")
    oldest = own
    while oldest.parent > 1:
        oldest = procfs.stat(oldest.parent)
    started = oldest.start if oldest.pid == ROOT_PID else own.start
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
