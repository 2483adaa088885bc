"""Cgroups of local sandboxes, v1 and v2: which hierarchies there are (pure), and one sandbox's directory in each."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.linux import procfs
from hotstart.linux.procfs import Mount
from hotstart.reasons import CGROUP_UNUSABLE

PARENT = "hotstart"
"""All sandboxes of the machine live below this directory of each hierarchy."""
_V1 = frozenset({"freezer", "memory", "pids", "cpu", "cpuacct"})
_V1_ALL = _V1 | {"cpuset", "devices", "blkio", "net_cls", "net_prio", "perf_event", "hugetlb", "rdma", "misc"}
_V2_WANTED = ("memory", "pids", "cpu")


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup hierarchy; ``controllers`` is empty for v2."""

    point: Path
    controllers: tuple[str, ...]
    v2: bool


def hierarchies(mounts: list[Mount]) -> list[Hierarchy]:
    """All cgroup hierarchies that are mounted, each once (pure)."""
    found: dict[str, Hierarchy] = {}
    for mount in mounts:
        if mount.fstype == "cgroup2":
            found[mount.device] = Hierarchy(Path(mount.point), (), True)
        elif mount.fstype == "cgroup":
            words = mount.super_options.split(",")
            controllers = tuple(word for word in words if word in _V1_ALL or word.startswith("name="))
            found[mount.device] = Hierarchy(Path(mount.point), controllers, False)
    return list(found.values())


def usable(mounted: list[Hierarchy]) -> list[Hierarchy]:
    """Those in which a sandbox gets a directory (pure); raises ``cgroup-unusable`` if none of them can freeze."""
    chosen = [h for h in mounted if h.v2 or _V1 & set(h.controllers)]
    if not any(h.v2 or "freezer" in h.controllers for h in chosen):
        raise HotstartError(CGROUP_UNUSABLE, "neither cgroup v2 nor the v1 freezer is mounted")
    return chosen


def mode(mounted: list[Hierarchy]) -> str:
    """``v1``, ``v2`` or ``hybrid`` (pure)."""
    v2 = any(h.v2 for h in mounted)
    v1 = any(not h.v2 and _V1_ALL & set(h.controllers) for h in mounted)
    return "hybrid" if v1 and v2 else "v2" if v2 else "v1"


def name_of(home: Path, sandbox: str) -> str:
    """What a sandbox's cgroups are called (pure): two homes may hold sandboxes of one name."""
    return f"{sandbox}.{hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}"


def directories(name: str) -> list[Path]:
    """Where the cgroups called ``name`` are, or would be, on this machine."""
    return [h.point / PARENT / name for h in usable(hierarchies(procfs.mountinfo("self")))]


def create(name: str) -> tuple[list[Path], Path | None]:
    """Make the sandbox's cgroups: those in v1 hierarchies, and the one in v2 if it is mounted.

    Raises ``cgroup-unusable``, with nothing left behind.
    """
    made: list[Path] = []
    unified = None
    try:
        for hierarchy in usable(hierarchies(procfs.mountinfo("self"))):
            parent = hierarchy.point / PARENT
            _make(parent / name)
            made.append(parent / name)
            if hierarchy.v2:
                unified = parent / name
                _delegate(hierarchy.point)
                _delegate(parent)
    except OSError as error:
        remove(made, Deadline.after(1, "cgroups to become empty"))
        raise HotstartError(CGROUP_UNUSABLE, f"{error.filename}: {error.strerror}", tried="making a cgroup") from None
    return [path for path in made if path != unified], unified


def thaw(paths: list[Path]) -> None:
    """Let frozen processes run (a frozen one does not even die of SIGKILL under v1)."""
    for path in paths:
        for name, word in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            with contextlib.suppress(FileNotFoundError, PermissionError, OSError):
                _write(path / name, word)


def remove(paths: list[Path], deadline: Deadline) -> None:
    """Kill what is left in the cgroups and remove them; raises ``deadline`` if they do not become empty."""
    for path in paths:
        while not _removed(path):
            deadline.check()
            _kill(path)
            time.sleep(deadline.sooner(0.002))
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # the last sandbox of the machine


def _make(path: Path) -> None:
    while True:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        try:
            path.mkdir(mode=0o755, exist_ok=True)
        except FileNotFoundError:
            continue  # another sandbox, the last one, has just removed the parent
        return


def _delegate(path: Path) -> None:
    """Give children the controllers; best effort: freezing needs none of them."""
    for controller in _V2_WANTED:
        with contextlib.suppress(OSError):
            _write(path / "cgroup.subtree_control", f"+{controller}")


def _removed(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


def _kill(path: Path) -> None:
    """End everything in one cgroup: helpers that a crash of the agent left there."""
    with contextlib.suppress(OSError):
        _write(path / "cgroup.kill", "1")
        return
    with contextlib.suppress(FileNotFoundError):
        for word in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(word), signal.SIGKILL)


def _write(path: Path, word: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, word.encode())
    finally:
        os.close(fd)
