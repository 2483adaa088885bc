"""System calls that Python 3.11 lacks, through libc, with OSError on failure (x86-64 and arm64 numbers)."""

from __future__ import annotations

import ctypes
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

CLONE_INTO_CGROUP = 1 << 33

NAMESPACE_FLAGS = {
    "mnt": CLONE_NEWNS,
    "cgroup": CLONE_NEWCGROUP,
    "uts": CLONE_NEWUTS,
    "ipc": CLONE_NEWIPC,
    "user": CLONE_NEWUSER,
    "pid": CLONE_NEWPID,
    "net": CLONE_NEWNET,
}

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_SET_CHILD_SUBREAPER = 36

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

_NUMBERS = {
    "x86_64": {
        "pivot_root": 155,
        "seccomp": 317,
        "clone3": 435,
        "renameat2": 316,
        "openat2": 437,
        "process_vm_readv": 310,
    },
    "aarch64": {
        "pivot_root": 41,
        "seccomp": 277,
        "clone3": 435,
        "renameat2": 276,
        "openat2": 437,
        "process_vm_readv": 270,
    },
}


_MACHINE = os.uname().machine


def _nr(name: str) -> int:
    return _NUMBERS[_MACHINE][name]


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def setns(fd: int, flags: int = 0) -> None:
    """Enter the namespace behind ``fd``.  The caller must be single-threaded for mnt and user namespaces."""
    _check(_libc.setns(fd, flags), "setns")


def unshare(flags: int) -> None:
    """Move the caller (for pid: its later children) into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, fstype: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    _check(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            fstype.encode() or None,
            ctypes.c_ulong(flags),
            os.fsencode(data) or None,
        ),
        f"mount {target}",
    )


def umount(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    _check(_libc.umount2(os.fsencode(target), flags), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2)."""
    _check(_libc.syscall(ctypes.c_long(_nr("pivot_root")), os.fsencode(new), os.fsencode(old)), "pivot_root")


def sethostname(name: str) -> None:
    """sethostname(2)."""
    data = name.encode()
    _check(_libc.sethostname(data, len(data)), "sethostname")


def prctl(option: int, *args: int) -> None:
    """prctl(2) with integer arguments."""
    values = [ctypes.c_ulong(a) for a in (*args, 0, 0, 0, 0)[:4]]
    _check(_libc.prctl(option, *values), f"prctl {option}")


def openat2(dir_fd: int, path: str, flags: int, resolve: int, mode: int = 0) -> int:
    """openat2(2): open ``path`` below ``dir_fd`` under RESOLVE_* restrictions; O_CLOEXEC is added."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve)
    return _check(
        _libc.syscall(
            ctypes.c_long(_nr("openat2")), ctypes.c_int(dir_fd), os.fsencode(path), how, ctypes.c_size_t(len(how))
        ),
        f"openat2 {path}",
    )


def renameat2_noreplace(source: str, target: str) -> None:
    """Rename that fails with EEXIST instead of replacing."""
    at_fdcwd, rename_noreplace = -100, 1
    _check(
        _libc.syscall(
            ctypes.c_long(_nr("renameat2")),
            ctypes.c_int(at_fdcwd),
            os.fsencode(source),
            ctypes.c_int(at_fdcwd),
            os.fsencode(target),
            ctypes.c_uint(rename_noreplace),
        ),
        f"rename {source} to {target}",
    )


def seccomp_set_filter(program: bytes) -> None:
    """Install a seccomp-BPF program (``sock_filter`` array) for the calling thread and its future children.

    Needs CAP_SYS_ADMIN or no_new_privs.
    """
    if len(program) % 8:
        raise ValueError("a sock_filter is 8 bytes")
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    set_mode_filter = 1
    _check(
        _libc.syscall(ctypes.c_long(_nr("seccomp")), ctypes.c_uint(set_mode_filter), ctypes.c_uint(0), fprog), "seccomp"
    )


def capset(*, effective: int, permitted: int, inheritable: int) -> None:
    """capset(2) for the calling thread; the sets as bit masks."""
    version_3 = 0x20080522
    header = struct.pack("=II", version_3, 0)
    low, high = 0xFFFFFFFF, 32
    sets = (
        effective & low,
        permitted & low,
        inheritable & low,
        effective >> high,
        permitted >> high,
        inheritable >> high,
    )
    _check(_libc.capset(header, struct.pack("=6I", *sets)), "capset")


def block_all_signals() -> None:
    """Block every signal that can be blocked, for the calling thread and what it executes.

    ``signal.pthread_sigmask`` without the 5 ms that importing ``signal`` costs.
    """
    signals = ctypes.create_string_buffer(128)
    _libc.sigfillset(signals)
    set_mask = 2
    _check(_libc.sigprocmask(set_mask, signals, None), "sigprocmask")


def fork_into(flags: int, cgroup_fd: int = -1) -> int:
    """Fork by clone3(2) with CLONE_NEW* ``flags``, into the v2 cgroup behind ``cgroup_fd`` if it is not -1.

    Writing to cgroup.procs instead costs an RCU grace period, 8 to 20 ms.  For single-threaded callers whose child
    executes a program or ends by ``os._exit``: Python's own fork handlers do not run.  Returns 0 in the child.
    """
    if cgroup_fd >= 0:
        flags |= CLONE_INTO_CGROUP
    sigchld = 17
    args = struct.pack("=11Q", flags, 0, 0, 0, sigchld, 0, 0, 0, 0, 0, max(cgroup_fd, 0))
    return _check(_libc.syscall(ctypes.c_long(_nr("clone3")), args, ctypes.c_size_t(len(args))), "clone3")
