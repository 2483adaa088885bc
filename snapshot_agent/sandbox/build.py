"""In the forked child that becomes pid 1: namespaces, root file system, and at last the supervisor's program.

Runs in the fresh interpreter of the shim; every import here is on the way of a restore.
"""

from __future__ import annotations

import os
import stat

from hotstart.hooks.control.start import ORPHANED_SIGNAL
from hotstart.linux import syscalls as kernel
from hotstart.snapshot_agent.sandbox.order import MERGED, UPPER, WORK

TYPE_CHECKING = False  # the real one comes with typing, which costs 5 ms
if TYPE_CHECKING:
    from typing import NoReturn

    from hotstart.snapshot_agent.sandbox.order import Order, Step

_KEPT_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
"""Have the same bits in statvfs and in mount."""
_OVERLAY = "index=off,metacopy=off,redirect_dir=off,volatile"
"""Plain upper directories that a snapshot can carry; what must outlive a crash of the machine is in snapshots."""
_HOSTS, _HOSTNAME = "/run/hotstart/hosts", "/run/hotstart/hostname"


class Failure(Exception):
    """A step that failed: the code of its reason, and what happened."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def become_supervisor(order: Order, address: str) -> NoReturn:
    """Build the sandbox around the calling process (pid 1 of a fresh pid namespace) and execute the supervisor.

    Stdio and SPARE_FDS are in place, the network namespace is the sandbox's.  Raises Failure.
    """
    code, doing = "sandbox-start", "preparing pid 1"
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, ORPHANED_SIGNAL)
        kernel.block_all_signals()  # before anybody knows this pid: an early SIGTERM waits for the supervisor
        code, doing = "cgroup-unusable", "joining the cgroups"
        _join(order.cgroups)
        code, doing = "sandbox-start", "making namespaces"
        _namespaces(order.name)
        code, doing = "overlay-unusable", f"mounting an overlay of {order.rootfs} on {order.directory}"
        root = mount_root(order.rootfs, order.directory)
        code, doing = "sandbox-start", "opening what the host lends"
        lent = _open_sources(order.steps)
        doing = "entering the root file system"
        os.chdir(root)
        kernel.pivot_root(".", ".")
        for step in order.steps:
            doing = " ".join(str(word) for word in step if isinstance(word, str))
            _carry_out(step, lent)
        doing = "naming the host"
        _name_host(order.name, address)
        doing = "leaving the host's root file system"
        kernel.umount(".", kernel.MNT_DETACH)
        os.chdir("/")
        doing = f"starting the supervisor with {order.argv[0]}, which must exist in {order.rootfs}"
        os.execve(order.argv[0], order.argv, {})
    except OSError as error:
        raise Failure(code, f"{doing}: {error.strerror or error}") from None


def _join(cgroups: list[str]) -> None:
    """Join v1 cgroups through ``tasks``: moving one thread costs nothing, cgroup.procs an RCU grace period (20 ms)."""
    for directory in cgroups:
        fd = os.open(f"{directory}/tasks", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)


def _namespaces(name: str) -> None:
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP)
    kernel.sethostname(name)
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)  # nothing from here on reaches the host


def mount_root(rootfs: str, directory: str) -> str:
    """Mount the overlay of a sandbox's directory; returns where.  For a mount namespace of its own; raises OSError."""
    upper, work, merged = (f"{directory}/{name}" for name in (UPPER, WORK, MERGED))
    kernel.mount("overlay", merged, "overlay", 0, f"lowerdir={rootfs},upperdir={upper},workdir={work},{_OVERLAY}")
    return merged


def _open_sources(steps: list[Step]) -> dict[str, int]:
    """Descriptors of all that is bound from the host, opened while its paths mean the host's files."""
    lent: dict[str, int] = {}
    for step in steps:
        if step[0] not in ("bind", "cover"):
            continue
        path = str(step[1])
        try:
            lent[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            if step[0] == "bind" and not step[4]:
                continue
            raise OSError(error.errno, f"{path}: {error.strerror}") from None
    return lent


def _carry_out(step: Step, lent: dict[str, int]) -> None:
    """One step inside the new root (see ``plan``)."""
    match step:
        case ("mount", str(target), str(fstype), str(source), int(flags), str(data)):
            os.makedirs(target, 0o755, exist_ok=True)
            kernel.mount(source, target, fstype, flags, data)
        case ("bind", str(source), str(target), bool(read_only), bool(required)):
            _bind(lent.get(source), source, target, read_only, required)
        case ("cover", str(source), str(target)):
            if os.path.isdir(target):
                _bind(lent[source], source, target, True, True)
        case ("dir", str(target), int(mode)):
            os.makedirs(target, exist_ok=True)
            os.chmod(target, mode)
        case ("node", str(target), int(mode), int(major), int(minor)):
            os.mknod(target, stat.S_IFCHR | mode, os.makedev(major, minor))
            os.chmod(target, mode)
        case ("link", str(target), str(text)):
            os.symlink(text, target)
        case ("file", str(target), bytes(content), int(mode)):
            _write(target, content, mode)
        case ("lock" | "unlock" as word, str(target)):
            if os.path.lexists(target):
                kernel.mount(target, target, flags=kernel.MS_BIND | kernel.MS_REC)
                _remount(target, kernel.MS_RDONLY if word == "lock" else 0)
        case ("mask", str(target)):
            if os.path.isdir(target):
                kernel.mount("tmpfs", target, "tmpfs", kernel.MS_RDONLY, "size=0")
            elif os.path.lexists(target):
                kernel.mount("/dev/null", target, flags=kernel.MS_BIND)
        case _:
            raise OSError(0, f"no such step: {step!r}")


def _bind(fd: int | None, source: str, target: str, read_only: bool, required: bool) -> None:
    """Bind what the host lends.  File systems of the host that cannot be bound are told of, not fatal."""
    try:
        if fd is None:
            raise OSError(0, "it cannot be opened")
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.makedirs(target, 0o755, exist_ok=True)
        elif not os.path.lexists(target):
            os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
            _write(target, b"", 0o644)
        kernel.mount(f"/proc/self/fd/{fd}", target, flags=kernel.MS_BIND)
        if read_only:
            _remount(target, kernel.MS_RDONLY)
    except OSError as error:
        if required:
            raise
        os.write(2, os.fsencode(f"hotstart: {source} of the host is not visible here: {error.strerror}\n"))


def _remount(target: str, flags: int) -> None:
    """Change read-only of one mount; what else restricts it stays."""
    kept = os.statvfs(target).f_flag & _KEPT_FLAGS
    kernel.mount("", target, flags=kernel.MS_REMOUNT | kernel.MS_BIND | kept | flags)


def _name_host(name: str, address: str) -> None:
    """The sandbox's name leads to its address; files of the image are covered, not changed."""
    try:
        with open("/etc/hosts", "rb") as file:
            known = file.read(1 << 20)
    except OSError:
        known = b"127.0.0.1 localhost\n"
    _write(_HOSTS, known.rstrip(b"\n") + f"\n{address} {name}\n".encode(), 0o644)
    _write(_HOSTNAME, f"{name}\n".encode(), 0o644)
    for source, target in ((_HOSTS, "/etc/hosts"), (_HOSTNAME, "/etc/hostname")):
        if os.path.isfile(target):
            kernel.mount(source, target, flags=kernel.MS_BIND)


def _write(path: str, content: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        os.fchmod(fd, mode)
        while content:
            content = content[os.write(fd, content) :]
    finally:
        os.close(fd)
