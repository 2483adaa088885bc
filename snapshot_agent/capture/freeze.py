"""The frozen part of a capture: CRIU dumps the tree inside the sandbox, and files are copied while it is stopped.

CRIU freezes the sandbox's cgroup itself and thaws it on every way out, also when Hotstart dies: its RPC socket
closes, it undoes and the source runs on.  Point of no return: none, the source survives every failure here.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hotstart.clock import Deadline
from hotstart.durable import read_bounded
from hotstart.errors import HotstartError
from hotstart.names import ROOT_PID
from hotstart.reasons import CRIU_DUMP, DEADLINE, DISK_FULL
from hotstart.snapshot_agent.criu import diagnose, options, rpc
from hotstart.snapshot_agent.criu.bundle import Bundle
from hotstart.snapshot_agent.sandbox import cgroups
from hotstart.snapshot_agent.sandbox.enter import KERNDAT
from hotstart.snapshot_agent.sandbox.helper import Helper, open_namespaces

_LOG_LIMIT = 64 << 20
_NO_ROOM = 1 << 20
UNDO_SECONDS = 60.0
_HELPER = "hotstart.snapshot_agent.capture.inside"


@dataclass(frozen=True)
class Frozen:
    """Monotonic seconds: when CRIU was asked, when files could be copied, when the source ran again."""

    asked: float
    stopped: float
    running: float


def dump(
    init_pid: int,
    freezer: Path,
    bundle: Bundle,
    images: Path,
    work: Path,
    kerndat: Path | None,
    deadline: Deadline,
    while_frozen: Callable[[], None],
) -> Frozen:
    """Dump the worker of the sandbox with supervisor ``init_pid`` into ``images``; logs go to ``work``.

    ``while_frozen`` is called once, after the images are complete and before the tree runs again.
    Raises ``criu-dump-failed`` or the reason that CRIU's log gives; what ``while_frozen`` raises.
    """
    fds = open_namespaces(init_pid)
    try:
        fds |= {
            "bundle": os.open(bundle.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC),
            "images": os.open(images, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),
            "work": os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),
            "freezer": os.open(freezer, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),
            "output": os.open(work / "criu.out", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600),
        }
        if kerndat is not None:
            fds["kerndat"] = os.open(kerndat, os.O_RDONLY | os.O_CLOEXEC)
        plan = {
            "steps": [{"do": "kerndat"}],
            "exec": [*bundle.command("/proc/self/fd/{bundle}"), "swrk", "{rpc}"],
            "env": bundle.environment(),
            "remove": [KERNDAT],
        }
        with Helper(_HELPER, "dumping the worker") as helper:
            try:
                channel, numbers = helper.start(plan, fds, deadline)
            except BaseException:
                helper.abandon()  # CRIU has no request yet, and may wait for one on a descriptor that nobody knows
                raise
            try:
                with channel:
                    return _converse(channel, numbers, work, deadline, while_frozen)
            finally:
                _end(helper, freezer)
    finally:
        for fd in fds.values():
            os.close(fd)


def _end(helper: Helper, freezer: Path) -> None:
    """Wait for CRIU's end, also after Ctrl-C: it notices the closed channel, undoes and thaws.

    Killed before that, it would leave its parasite in the source.  One that does not end at all holds the source
    frozen: then killing it and thawing is all that is left, and better than nothing.
    """
    try:
        helper.finish(Deadline.after(UNDO_SECONDS, "CRIU to end"))
    except HotstartError as error:
        if error.reason is DEADLINE:
            helper.abandon()
            cgroups.thaw([freezer])
        raise


def _converse(
    channel: socket.socket, numbers: dict[str, int], work: Path, deadline: Deadline, while_frozen: Callable[[], None]
) -> Frozen:
    descriptors = options.Descriptors(numbers["images"], numbers["work"], numbers["freezer"])
    request = options.dump(ROOT_PID, descriptors, timeout_s=max(1, int(deadline.remaining())))
    stopped = 0.0

    def notified(script: str, _pid: int) -> None:
        nonlocal stopped
        if script == "post-dump":
            stopped = time.monotonic()
            while_frozen()

    asked = time.monotonic()
    answer, _moments = rpc.converse(channel, request, deadline, notified)
    running = time.monotonic()
    if not answer.success:
        raise failure(work / options.DUMP_LOG, answer.cr_errmsg)
    return Frozen(asked, stopped, running)


def failure(log: Path, message: str) -> HotstartError:
    """The reason of a failed dump, from CRIU's log."""
    try:
        text = read_bounded(log, _LOG_LIMIT).decode(errors="replace")
    except (OSError, HotstartError):
        text = ""
    reason, line = diagnose.explain(text, CRIU_DUMP)
    if reason is CRIU_DUMP and _is_full(log.parent):
        reason = DISK_FULL  # where CRIU had no room for its log either
    return HotstartError(
        reason, f"CRIU: {message or line}" if not text else f"CRIU: {line}", tried="dumping the worker"
    )


def _is_full(directory: Path) -> bool:
    room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize < _NO_ROOM
