"""What speaks against a capture beyond what ``audit`` reads: strays, IPC objects, odd threads; and what it writes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hotstart.linux import procfs
from hotstart.linux.syscalls import CLONE_NEWIPC, RESOLVE_IN_ROOT, openat2, setns
from hotstart.snapshot_agent.sandbox import view

_THREAD_NAMESPACES = ("net", "ipc", "uts", "mnt", "cgroup")
"""What a single thread can leave its process in."""
_WALK_LIMIT = 100_000
"""Entries of the upper directory that are counted; a worker that wrote more has a larger diff than is said."""
_GONE = (FileNotFoundError, ProcessLookupError)
T = TypeVar("T")


@dataclass(frozen=True)
class Named:
    """A process of the sandbox as findings name it."""

    inner_pid: int
    name: str


@dataclass(frozen=True)
class Worker:
    """A live sandbox, beyond what ``audit`` reads."""

    pids: tuple[int, ...]
    """The worker's tree in the agent's pid namespace, its root first."""
    strays: tuple[Named, ...]
    ipc_objects: tuple[str, ...]
    """System V objects and POSIX message queues of the sandbox's ipc namespace."""
    odd_threads: tuple[tuple[Named, str], ...]
    """Threads that left a namespace of their process, with its kind."""


@dataclass(frozen=True)
class Content:
    """How much a capture has to write, in bytes."""

    memory: int
    """Anonymous and shared memory."""
    largest: int
    """The part of it that the largest process has."""
    tmpfs: int
    upper: int


def gather(init_pid: int) -> Worker:
    """Read the sandbox with supervisor ``init_pid``; raises ``sandbox-dead``, ``not-a-child-of-supervisor``."""
    tree = view.tree(init_pid)
    inner = {task.pid: task.ns_pid for task in tree}
    strays = [Named(task.ns_pid, _name(task.pid)) for task in view.strays(init_pid)]
    odd = [(Named(inner[pid], _name(pid)), kind) for pid, kind in odd_threads(inner)]
    return Worker(tuple(inner), tuple(strays), tuple(ipc_objects(init_pid)), tuple(odd))


def content(init_pid: int, pids: Iterable[int], *, exact: bool) -> Content:
    """What a capture of these processes would write; raises ``sandbox-dead``.

    ``exact`` counts what processes share once.  That walks all their page tables (50 ms for 2.5 GB), and the worker's
    page faults wait for it meanwhile; without it the answer is never too small and costs nothing.
    """
    measure = _shared_once if exact else _at_most
    sizes = [0]
    for pid in pids:
        with contextlib.suppress(*_GONE):
            sizes.append(measure(pid))
    upper = view.upperdir(init_pid)
    return Content(sum(sizes), max(sizes), _tmpfs_bytes(init_pid), upper_bytes(upper) if upper else 0)


def upper_bytes(directory: Path) -> int:
    """Disk blocks of the files below a directory, in bytes, links not followed; at most _WALK_LIMIT are counted."""
    total = seen = 0
    for _path, _directories, names, fd in os.fwalk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(name, dir_fd=fd, follow_symlinks=False).st_blocks * 512
            seen += 1
        if seen > _WALK_LIMIT:
            break
    return total


def odd_threads(pids: Iterable[int]) -> list[tuple[int, str]]:
    """Process and kind for each namespace that a thread does not share with its process (CRIU would lose that)."""
    found = []
    for pid in pids:
        with contextlib.suppress(*_GONE):
            threads = [name for name in os.listdir(f"/proc/{pid}/task") if name != str(pid)]
            for kind in _THREAD_NAMESPACES if threads else ():
                own = procfs.namespace(pid, kind)
                if any(_thread_namespace(pid, thread, kind, own) != own for thread in threads):
                    found.append((pid, kind))
    return found


def ipc_objects(init_pid: int) -> list[str]:
    """System V objects and POSIX message queues of the sandbox's ipc namespace, one description each."""
    fd = os.open(f"/proc/{init_pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_ino == os.stat("/proc/self/ns/ipc").st_ino:
            return []  # not a namespace of its own: the objects are the machine's
        return _in_thread(lambda: _read_ipc(fd))
    finally:
        os.close(fd)


def _read_ipc(namespace: int) -> list[str]:
    setns(namespace, CLONE_NEWIPC)  # of this thread alone, which ends with the reading
    objects = []
    for kind in ("shm", "sem", "msg"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]:
                key, identifier = line.split()[:2]
                objects.append(f"System V {kind} {identifier} (key {key})")
    return objects + [f"message queue /{name}" for name in _message_queues()]


def _message_queues() -> list[str]:
    """Names of the message queues of the calling thread's ipc namespace, through a mount that nobody else sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    fsopen, fsconfig, fsmount = (ctypes.c_long(number) for number in (430, 431, 432))
    cloexec, create = ctypes.c_uint(1), ctypes.c_uint(6)
    context = libc.syscall(fsopen, b"mqueue", cloexec)
    if context < 0:
        return []  # a kernel without message queues
    try:
        created = libc.syscall(fsconfig, ctypes.c_int(context), create, None, None, 0)
        mount = libc.syscall(fsmount, ctypes.c_int(context), cloexec, ctypes.c_uint(0)) if created == 0 else -1
    finally:
        os.close(context)
    if mount < 0:
        return []
    try:
        directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)
    finally:
        os.close(mount)
    try:
        return sorted(os.listdir(directory))
    finally:
        os.close(directory)


def _in_thread(read: Callable[[], T]) -> T:
    """Run ``read`` in a thread of its own and hand on what it returns or raises."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(read())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=body, name="hotstart-ipc")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _shared_once(pid: int) -> int:
    sizes = procfs.rollup(pid)
    return sum(sizes.get(kind, 0) for kind in ("Pss_Anon", "Pss_Shmem", "SwapPss"))


def _at_most(pid: int) -> int:
    total = 0
    for line in procfs.read(pid, "status").splitlines():
        if line.startswith((b"RssAnon:", b"RssShmem:", b"VmSwap:")):
            total += int(line.split()[1]) << 10
    return total


def _tmpfs_bytes(init_pid: int) -> int:
    total = 0
    root = os.open(f"/proc/{init_pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for point in view.tmpfs_mounts(init_pid):
            with contextlib.suppress(OSError):
                fd = openat2(root, point, os.O_RDONLY | os.O_DIRECTORY, RESOLVE_IN_ROOT)
                try:
                    space = os.fstatvfs(fd)
                finally:
                    os.close(fd)
                total += (space.f_blocks - space.f_bfree) * space.f_frsize
    finally:
        os.close(root)
    return total


def _thread_namespace(pid: int, thread: str, kind: str, own: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/task/{thread}/ns/{kind}")
    except FileNotFoundError:
        return own  # ended in the meantime


def _name(pid: int) -> str:
    try:
        return procfs.stat(pid).name
    except _GONE:
        return "gone"
