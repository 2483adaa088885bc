"""Facts of a sandbox, read from ``/proc/<init_pid>`` alone: a local sandbox and a pod's container look the same here.

``pid`` is always the supervisor's pid in the caller's pid namespace.  All functions raise ``sandbox-dead`` when it is
gone.  Mount points and ``pipe:[inode]`` names are the sandbox's own words; nothing is opened by them here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hotstart.errors import HotstartError
from hotstart.linux import procfs
from hotstart.linux.procfs import CgroupEntry, Mount
from hotstart.names import ROOT_PID
from hotstart.reasons import CGROUP_UNUSABLE, NESTED_PID1, SANDBOX_DEAD
from hotstart.snapshot_agent.sandbox.cgroups import Hierarchy, hierarchies

_NOT_CARRIED = ("/proc", "/sys", "/run/hotstart")
_GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True)
class Task:
    """One process: its pid for the caller and its pid in the sandbox's pid namespace."""

    pid: int
    ns_pid: int


def cgroup_dirs(pid: int) -> list[Path]:
    """The sandbox's directory in every mounted cgroup hierarchy: what a helper joins."""
    with _sandbox(pid):
        return [path for _hierarchy, path in _cgroups(procfs.cgroups(pid), hierarchies(procfs.mountinfo("self")))]


def freezer_dir(pid: int) -> Path:
    """The directory whose freezer stops the whole sandbox: v1 where it has one, else v2; raises ``cgroup-unusable``."""
    with _sandbox(pid):
        found = _cgroups(procfs.cgroups(pid), hierarchies(procfs.mountinfo("self")))
    for wanted in (lambda h: "freezer" in h.controllers, lambda h: h.v2):
        for hierarchy, path in found:
            if wanted(hierarchy) and path != hierarchy.point:
                return path
    raise HotstartError(CGROUP_UNUSABLE, f"the supervisor (pid {pid}) has no cgroup of its own that can freeze")


def upperdir(pid: int) -> Path | None:
    """The upper directory of the overlay that is the root file system (the file system diff), or None."""
    with _sandbox(pid):
        return upperdir_of(procfs.mountinfo(pid))


def upperdir_of(mounts: list[Mount]) -> Path | None:
    """The same from the sandbox's mounts (pure)."""
    root = next((m for m in reversed(mounts) if m.point == "/"), None)
    if root is None or root.fstype != "overlay":
        return None
    for option in root.super_options.split(","):
        if option.startswith("upperdir="):
            return Path(option.removeprefix("upperdir="))
    return None


def mount_points(pid: int) -> list[str]:
    """Every mount point of the sandbox but its root: what lies below one in the upper directory is hidden there."""
    with _sandbox(pid):
        return sorted({mount.point for mount in procfs.mountinfo(pid)} - {"/"})


def tmpfs_mounts(pid: int) -> list[str]:
    """Mount points of tmpfs whose contents belong to the sandbox and travel with a snapshot."""
    with _sandbox(pid):
        return own_tmpfs(procfs.mountinfo(pid), procfs.mountinfo("self"))


def own_tmpfs(mounts: list[Mount], ours: list[Mount]) -> list[str]:
    """The same from the sandbox's and the caller's mounts (pure).

    A tmpfs that the caller has mounted too is a volume of the host, and a read-only one holds nothing that changes.
    """
    host = {mount.device for mount in ours}
    visible = {mount.point: mount for mount in mounts}  # a later mount covers an earlier one
    return sorted(
        point
        for point, mount in visible.items()
        if mount.fstype == "tmpfs"
        and mount.root == "/"
        and "ro" not in mount.options
        and mount.device not in host
        and point != "/dev"
        and not any(point == top or point.startswith(f"{top}/") for top in _NOT_CARRIED)
    )


def root_task(pid: int) -> Task:
    """The worker's root: the supervisor's child with pid ROOT_PID; raises ``not-a-child-of-supervisor``."""
    with _sandbox(pid):
        depth = _depth(pid)
        for child in procfs.children(pid):
            with contextlib.suppress(*_GONE):
                if procfs.status(child).ns_pids[depth:] == (ROOT_PID,):
                    return Task(child, ROOT_PID)
    raise HotstartError(NESTED_PID1, f"the supervisor (pid {pid}) has no child with pid {ROOT_PID} in its namespace")


def tree(pid: int) -> list[Task]:
    """The worker's tree: its root and all descendants, parents first.

    Exact while the sandbox is frozen; otherwise processes that come or go meanwhile may be missing.
    """
    root = root_task(pid)
    with _sandbox(pid):
        depth = _depth(pid)
    found, queue = [root], [root.pid]
    while queue:
        with contextlib.suppress(*_GONE):
            for child in procfs.children(queue.pop()):
                with contextlib.suppress(*_GONE):
                    found.append(Task(child, procfs.status(child).ns_pids[depth]))
                    queue.append(child)
    return found


def members(pid: int) -> list[int]:
    """All processes of the sandbox's pid namespace (not of namespaces nested in it), the supervisor included."""
    with _sandbox(pid):
        namespace = procfs.namespace(pid, "pid")
    found = []
    for other in procfs.pids():
        # Permission is refused for processes with more capabilities than the caller: none of those is in a sandbox.
        with contextlib.suppress(*_GONE, PermissionError):
            if procfs.namespace(other, "pid") == namespace:
                found.append(other)
    return found


def strays(pid: int) -> list[Task]:
    """Processes in the sandbox's pid namespace that are neither the supervisor nor in the worker's tree.

    Each is judged by its own ancestors, so that processes which the worker starts meanwhile are not taken for strays.
    """
    root = root_task(pid).pid
    with _sandbox(pid):
        depth = _depth(pid)
    found = []
    for other in members(pid):
        with contextlib.suppress(*_GONE):
            if other != pid and not _descends(other, root):
                found.append(Task(other, procfs.status(other).ns_pids[depth]))
    return found


def stdio(pid: int) -> tuple[str, str, str]:
    """The ``pipe:[inode]`` names behind the supervisor's stdin, stdout and stderr."""
    with _sandbox(pid):
        stdin, stdout, stderr = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3))
    return stdin, stdout, stderr


def private_bytes(pid: int) -> int:
    """Memory that this sandbox alone costs: anonymous and shared memory of all its processes, in bytes.

    Proportional shares are added up, so that a page which two processes of the sandbox share counts once.  Clean pages
    of files (libraries, the memory file) are not in it, except when the memory file lies on a tmpfs.
    """
    total = 0
    for member in members(pid):
        with contextlib.suppress(*_GONE):
            sizes = procfs.rollup(member)
            total += sizes.get("Pss_Anon", 0) + sizes.get("Pss_Shmem", 0)
    return total


def _cgroups(entries: list[CgroupEntry], mounted: list[Hierarchy]) -> list[tuple[Hierarchy, Path]]:
    """The directory of each entry whose hierarchy is mounted (pure)."""
    found = []
    for hierarchy in mounted:
        for entry in entries:
            same = not entry.controllers if hierarchy.v2 else set(entry.controllers) & set(hierarchy.controllers)
            if same:
                found.append((hierarchy, hierarchy.point / entry.path.lstrip("/")))
    return found


def _descends(pid: int, root: int) -> bool:
    """True if ``root`` is ``pid`` or one of its ancestors."""
    while pid not in (0, root):
        pid = procfs.stat(pid).parent
    return pid == root


def _depth(pid: int) -> int:
    """Index of the sandbox's pid namespace in a member's NSpid."""
    return len(procfs.status(pid).ns_pids) - 1


@contextlib.contextmanager
def _sandbox(pid: int) -> Iterator[None]:
    try:
        yield
    except _GONE as error:
        raise HotstartError(SANDBOX_DEAD, f"the supervisor (pid {pid}) is gone: {error}") from None
