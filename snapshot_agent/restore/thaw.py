"""CRIU rebuilds the tree inside a placeholder: files first, then the skeleton, then copied memory, then it runs.

A failure leaves the placeholder as it was, without processes of the image, so that it can be tried again or cold start.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotstart.clock import Deadline
from hotstart.durable import read_bounded
from hotstart.errors import HotstartError
from hotstart.names import CRIU_FIRST_PID, MEMORY_NAME
from hotstart.phases import Phases
from hotstart.reasons import CRIU_RESTORE
from hotstart.snapshot_agent.criu import diagnose, options, rpc
from hotstart.snapshot_agent.criu.bundle import Bundle
from hotstart.snapshot_agent.sandbox.enter import KERNDAT
from hotstart.snapshot_agent.sandbox.helper import Helper, open_namespaces

_LOG_LIMIT = 64 << 20
_PIPE = re.compile(r"pipe:\[\d+\]")
_STDIO_MODES = (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)
HELPER = "hotstart.snapshot_agent.restore.inside"


@dataclass(frozen=True)
class Archive:
    """Files to put back inside the sandbox: ``target`` empty means the root file system diff."""

    path: Path
    target: str = ""


@dataclass(frozen=True)
class Skeleton:
    """What CRIU needs of a snapshot."""

    images: Path
    memory: Path
    stdio: Sequence[str]
    """``pipe:[inode]`` names of the worker's stdin, stdout, stderr at capture."""
    archives: Sequence[Archive] = field(default_factory=tuple)
    kerndat: Path | None = None
    tiles: bool = False
    """Whether the tree gets the permission to use AMX."""


def thaw(
    helper: Helper,
    init_pid: int,
    cgroups: Sequence[str],
    skeleton: Skeleton,
    bundle: Bundle,
    work: Path,
    deadline: Deadline,
    phases: Phases,
    before_resume: Callable[[], None],
    running: Callable[[], None],
) -> None:
    """Restore into the placeholder with supervisor ``init_pid``, through a ``helper`` that was started already.

    ``before_resume`` runs while the tasks exist and stand still: memory is copied there.  ``running`` is called when
    CRIU has succeeded and the worker runs, while CRIU still cleans up.  Raises ``criu-restore-failed`` or what CRIU's
    log gives, and what ``before_resume`` raises.
    """
    with ExitStack() as stack:
        fds = _open(stack, init_pid, skeleton, bundle, work)
        steps: list[dict[str, Any]] = [
            {"do": "tmpfs" if a.target else "rootfs", "archive": f"archive{i}", "target": a.target}
            for i, a in enumerate(skeleton.archives)
        ]
        plan = {
            "cgroups": list(cgroups),
            "next_pid": CRIU_FIRST_PID,
            "steps": [*steps, {"do": "kerndat"}],
            "exec": [*bundle.command("/proc/self/fd/{bundle}"), "swrk", "{rpc}"],
            "env": bundle.environment(tiles=skeleton.tiles),
            "remove": [KERNDAT],
        }
        sent = time.monotonic()
        channel, numbers = helper.start(plan, fds, deadline)
        began = time.monotonic()
        first = min((start for _name, start, _end in helper.spans), default=began)
        phases.add("enter", sent, first)
        for name, start, end in helper.spans:
            phases.add(name, start, end)
        with channel:
            _converse(channel, numbers, skeleton, work, deadline, phases, before_resume)
        running()
        with phases.span("criu-exit"):
            helper.finish(deadline)  # the tree is re-parented to the supervisor once CRIU is gone


def _converse(
    channel: socket.socket,
    numbers: dict[str, int],
    skeleton: Skeleton,
    work: Path,
    deadline: Deadline,
    phases: Phases,
    before_resume: Callable[[], None],
) -> None:
    inherit = {name: numbers[f"stdio{i}"] for i, name in enumerate(skeleton.stdio) if f"stdio{i}" in numbers}
    inherit[MEMORY_NAME] = numbers["memory"]
    request = options.restore(options.Descriptors(numbers["images"], numbers["work"]), inherit)
    asked = time.monotonic()
    copied = [0.0, 0.0]

    def notified(script: str, _pid: int) -> None:
        if script == "pre-resume":
            copied[0] = time.monotonic()
            before_resume()
            copied[1] = time.monotonic()

    answer, _moments = rpc.converse(channel, request, deadline, notified)
    answered = time.monotonic()
    if not answer.success:
        raise failure(work / options.RESTORE_LOG, answer.cr_errmsg)
    phases.add("skeleton", asked, copied[0] or answered)
    if copied[0]:
        phases.add("copy", copied[0], copied[1])
        phases.add("release", copied[1], answered)


def _open(stack: ExitStack, init_pid: int, skeleton: Skeleton, bundle: Bundle, work: Path) -> dict[str, int]:
    fds: dict[str, int] = open_namespaces(init_pid)
    for fd in fds.values():
        stack.callback(os.close, fd)

    def keep(name: str, path: str | Path, flags: int) -> None:
        fds[name] = os.open(path, flags | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, fds[name])

    keep("bundle", bundle.root, os.O_PATH | os.O_DIRECTORY)
    keep("images", skeleton.images, os.O_RDONLY | os.O_DIRECTORY)
    keep("work", work, os.O_RDONLY | os.O_DIRECTORY)
    keep("memory", skeleton.memory, os.O_RDONLY | os.O_NOFOLLOW)
    keep("output", work / "criu.out", os.O_WRONLY | os.O_CREAT)
    for number, name in enumerate(skeleton.stdio):
        if _PIPE.fullmatch(name):  # opened before setns: the placeholder's own pipes take the place of the source's
            keep(f"stdio{number}", f"/proc/{init_pid}/fd/{number}", _STDIO_MODES[number])
    for number, archive in enumerate(skeleton.archives):
        keep(f"archive{number}", archive.path, os.O_RDONLY | os.O_NOFOLLOW)
    if skeleton.kerndat is not None:
        keep("kerndat", skeleton.kerndat, os.O_RDONLY | os.O_NOFOLLOW)
    return fds


def failure(log: Path, message: str) -> HotstartError:
    """The reason of a failed restore, from CRIU's log."""
    try:
        text = read_bounded(log, _LOG_LIMIT).decode(errors="replace")
    except (OSError, HotstartError):
        text = ""
    reason, line = diagnose.explain(text, CRIU_RESTORE)
    return HotstartError(reason, f"CRIU: {line if text else message or line}", tried="restoring the worker")
