"""What a sandbox's root file system is made of (pure): a list of steps that ``build`` carries out inside the new root.

Steps are tuples of plain values, so that they travel to the shim without an import.  Targets are paths in the sandbox;
``build`` takes every step after it has entered the new root, where a symlink of a hostile image cannot lead outside.

    ("mount", target, fstype, source, flags, data)      a file system of the sandbox's own
    ("bind", source, target, read_only, required)       a file or directory of the host; not required: may fail
    ("dir", target, mode) ("link", target, text) ("node", target, mode, major, minor)
    ("file", target, content, mode)
    ("lock", target) ("unlock", target) ("mask", target)    part of /proc: read-only, writable, empty; if it is there
    ("cover", source, target)                           hide a directory behind an empty one; if it is there
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotstart.hooks.control.start import SITE_PATH, START_PATH
from hotstart.linux.procfs import Mount
from hotstart.linux.syscalls import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY
from hotstart.names import CONTROL_PATH
from hotstart.snapshot_agent.sandbox.cgroups import Hierarchy, usable
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec

if TYPE_CHECKING:
    from hotstart.snapshot_agent.sandbox.order import Step

_PSEUDO = frozenset(
    "proc sysfs devtmpfs devpts mqueue cgroup cgroup2 securityfs debugfs tracefs bpf configfs fusectl pstore efivarfs"
    " hugetlbfs binfmt_misc autofs rpc_pipefs nfsd nsfs selinuxfs ramfs overlay".split()
)
"""File systems that are windows into the kernel, or roots of containers, not files of the machine."""
_LEFT_OUT = (
    *("/proc", "/sys", "/dev", "/run", "/tmp", "/var/run", "/var/tmp"),  # noqa: S108 - the sandbox has its own
    *("/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet"),  # of other containers
)
"""Mounts of the host at and below these do not appear in a sandbox."""
_STRICT = MS_NOSUID | MS_NODEV | MS_NOEXEC
_NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_LOCKED = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
_MASKED = ("/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi")
_NS_LAST_PID = "/proc/sys/kernel/ns_last_pid"


def steps(
    spec: SandboxSpec,
    start: bytes,
    sources: dict[str, str],
    host: Sequence[Mount],
    mounted: Sequence[Hierarchy],
) -> list[Step]:
    """All steps in their order.

    ``start``: content of the start file.  ``sources``: host paths of ``control``, ``site``, ``empty`` (an empty
    directory) and ``home``.  ``host``: the caller's mounts.  ``mounted``: its cgroup hierarchies.
    """
    return [
        *_proc(),
        *_sys(mounted),
        *_dev(),
        *(("mask", path) for path in _MASKED),
        *_run(start, sources),
        *_host(spec.rootfs, host, sources),
        *(("mount", point, "tmpfs", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") for point in sorted(spec.tmpfs)),
        *(("bind", volume.source, volume.target, volume.read_only, True) for volume in spec.volumes),
    ]


def host_mounts(rootfs: str, mounts: Sequence[Mount]) -> list[tuple[str, str]]:
    """Mounts of the host that lie below ``rootfs``: (path on the host, path in the sandbox), outermost first."""
    found: dict[str, str] = {}
    for mount in mounts:
        target = inside(rootfs, mount.point)
        if target in (None, "/") or mount.fstype in _PSEUDO or any(_below(top, mount.point) for top in _LEFT_OUT):
            continue
        found[mount.point] = target
    return sorted(found.items())


def inside(rootfs: str, path: str) -> str | None:
    """Where a path of the host is in the sandbox, or None if it is not below ``rootfs``."""
    if not _below(rootfs, path):
        return None
    return posixpath.join("/", posixpath.relpath(path, rootfs)) if path != rootfs else "/"


def _proc() -> list[Step]:
    return [
        ("mount", "/proc", "proc", "proc", _STRICT, ""),
        *(("lock", path) for path in _LOCKED),
        # Through it the supervisor says which pid the worker's root gets.  A write counts for the writer's own pid
        # namespace only, and needs capabilities that the worker does not have.
        ("unlock", _NS_LAST_PID),
    ]


def _sys(mounted: Sequence[Hierarchy]) -> list[Step]:
    result: list[Step] = [("mount", "/sys", "sysfs", "sysfs", _STRICT | MS_RDONLY, "")]
    chosen = usable(list(mounted))
    top = "/sys/fs/cgroup"
    if all(hierarchy.v2 for hierarchy in chosen):
        return [*result, ("mount", top, "cgroup2", "cgroup", _STRICT | MS_RDONLY, "")]
    result.append(("mount", top, "tmpfs", "cgroup", _STRICT, "mode=755,size=64k"))
    for hierarchy in chosen:
        target = f"{top}/{'unified' if hierarchy.v2 else hierarchy.point.name}"
        fstype, data = ("cgroup2", "") if hierarchy.v2 else ("cgroup", ",".join(hierarchy.controllers))
        result += [("dir", target, 0o755), ("mount", target, fstype, "cgroup", _STRICT | MS_RDONLY, data)]
    return result


def _dev() -> list[Step]:
    links = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
    return [
        ("mount", "/dev", "tmpfs", "dev", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k"),
        *(("node", f"/dev/{name}", 0o666, major, minor) for name, (major, minor) in _NODES.items()),
        *(("link", f"/dev/{name}", text) for name, text in links.items()),
        ("dir", "/dev/pts", 0o755),
        ("mount", "/dev/pts", "devpts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620,gid=5"),
        ("dir", "/dev/shm", 0o1777),  # noqa: S108
        ("mount", "/dev/shm", "tmpfs", "shm", MS_NOSUID | MS_NODEV, "mode=1777"),  # noqa: S108
    ]


def _run(start: bytes, sources: dict[str, str]) -> list[Step]:
    return [
        ("mount", "/run", "tmpfs", "run", MS_NOSUID | MS_NODEV, "mode=755"),
        ("dir", "/run/lock", 0o1777),
        ("dir", "/run/hotstart", 0o755),
        ("file", START_PATH, start, 0o600),
        ("bind", sources["control"], CONTROL_PATH, False, True),
        ("bind", sources["site"], SITE_PATH, True, True),
    ]


def _host(rootfs: str, host: Sequence[Mount], sources: dict[str, str]) -> list[Step]:
    """The host's other file systems, and over them nothing where Hotstart keeps all sandboxes and snapshots."""
    result: list[Step] = [("bind", path, target, True, False) for path, target in host_mounts(rootfs, host)]
    home = inside(rootfs, sources["home"])
    if home is not None:
        result.append(("cover", sources["empty"], home))
    return result


def _below(top: str, path: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")
