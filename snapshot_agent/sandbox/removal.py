"""Removing a local sandbox in whatever condition it is: running, frozen, half made, dead, left by another boot."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path

from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.linux.process import boot_id, open_pidfd
from hotstart.snapshot_agent.sandbox import cgroups, network, state
from hotstart.snapshot_agent.sandbox.demolition import demolish
from hotstart.snapshot_agent.sandbox.state import Exit, Live, Lock

MAKING_S = 5.0
"""Seconds that a making under way gets to come to a point where it can be ended."""
DYING_S = 20.0
"""Seconds until a sandbox that was killed must be gone (an exiting worker gives gigabytes back)."""
SHIM_S = 2.0
"""Seconds that the shim gets to write down how the sandbox ended."""
_POLL_S = 0.003


def remove(home: Path, name: str, *, grace_s: float) -> Exit | None:
    """SIGTERM, after ``grace_s`` seconds SIGKILL, then remove all that the sandbox held; returns how it ended.

    Returns None if there is no such sandbox, or if nobody knows how it ended.  Raises ``deadline``, OSError.
    """
    where = state.directory(home.resolve(), name)
    try:
        lock = Lock(where)
    except FileNotFoundError:
        return None
    with lock:
        live = _wait_for_live(where, lock)
        paths = cgroups.directories(cgroups.name_of(home.resolve(), name))
        cgroups.thaw(paths)
        if live is not None:
            _end(live, name, grace_s)
            _release(live, lock)
        ended = _how_it_ended(where)
        cgroups.remove(paths, Deadline.after(DYING_S, f"the cgroups of {name} to become empty"))
        if live is not None:
            network.remove(live.link, live.link_index)
        _sweep(where)
    return ended


def _wait_for_live(where: Path, lock: Lock) -> Live | None:
    """Who runs; None if nobody does or will, under this boot of the machine."""
    deadline = Deadline.after(MAKING_S, f"the making of {where.name} to come to an end")
    while True:
        nobody = lock.take()  # before looking: whoever had it may just have written
        try:
            live = state.read_live(where)
        except HotstartError:
            live = None
        if live is not None:
            return live if live.boot == boot_id() else None
        if nobody:
            return None
        deadline.check()
        time.sleep(_POLL_S)


def _end(live: Live, name: str, grace_s: float) -> None:
    """End pid 1, and with it everything in its pid namespace."""
    try:
        init = open_pidfd(live.init_pid, live.init_start)
    except ProcessLookupError:
        return
    try:
        if grace_s > 0:
            _signal(init, signal.SIGTERM)
            if _gone(init, grace_s):
                return
        _signal(init, signal.SIGKILL)
        if not _gone(init, DYING_S):
            Deadline.after(0, f"the processes of {name} to die").check()
    finally:
        os.close(init)


def _release(live: Live, lock: Lock) -> None:
    """Wait until the shim has finished and given up the lock; end it if it does not."""
    deadline = Deadline.after(SHIM_S, "the shim to end")
    while not lock.take():
        if deadline.expired():
            with contextlib.suppress(ProcessLookupError):
                shim = open_pidfd(live.shim_pid, live.shim_start)
                try:
                    _signal(shim, signal.SIGKILL)
                finally:
                    os.close(shim)
            return
        time.sleep(_POLL_S)


def _how_it_ended(where: Path) -> Exit | None:
    try:
        return state.read_exit(where)
    except HotstartError:
        return None


def _sweep(where: Path) -> None:
    """Remove the directory; its name is free at once, and what a crash leaves of it goes with the next one."""
    with contextlib.suppress(FileNotFoundError):
        where.rename(where.with_name(f".{where.name}.{os.urandom(4).hex()}"))
    for leftover in where.parent.glob(".*"):
        with contextlib.suppress(FileNotFoundError):  # another removal sweeps too
            demolish(leftover)


def _signal(pidfd: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def _gone(pidfd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
