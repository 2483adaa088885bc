"""What cannot be captured: one thing at a time, named by the argument; preflight must refuse it and leave it alone.

After ``go`` each checks that it still has what it had: a refused worker must not have been disturbed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import speech

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
Check = Callable[[], None]

_X86 = os.uname().machine == "x86_64"
_NR = {
    "io_uring_setup": 425,
    "ptrace": 101 if _X86 else 117,
    "shmget": 29 if _X86 else 194,
    "mq_open": 240 if _X86 else 180,
}
_CLONE = {"user": 0x10000000, "uts": 0x04000000, "net": 0x40000000}
DEVICES = ("/dev/loop-control", "/dev/fuse", "/dev/cpu_dma_latency", "/dev/hpet", "/dev/kvm", "/dev/btrfs-control")


def call(name: str, *values: int | ctypes.Array[ctypes.c_char]) -> int:
    """A system call, or give up."""
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    result = int(libc.syscall(ctypes.c_long(_NR[name]), *words))
    if result < 0:
        speech.give_up(f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


def io_uring() -> Check:
    """Holds a ring."""
    ring = call("io_uring_setup", 4, ctypes.create_string_buffer(120))

    def check() -> None:
        if not os.readlink(f"/proc/self/fd/{ring}").startswith("anon_inode:[io_uring]"):
            speech.bad("the ring is gone")

    return check


def inotify() -> Check:
    """Watches its working directory: in a sandbox, on overlayfs."""
    watch = libc.inotify_init1(os.O_NONBLOCK)
    if watch < 0 or libc.inotify_add_watch(watch, b".", 0x100) < 0:
        speech.give_up("inotify")

    def check() -> None:
        Path("made").touch()
        if not select.select([watch], [], [], 5)[0]:
            speech.bad("the watch is gone")

    return check


def outside_tcp() -> Check:
    """Talks with ``ZOO_PEER`` (host:port), which echoes, outside of the sandbox."""
    host, port = os.environ["ZOO_PEER"].rsplit(":", 1)
    peer = socket.create_connection((host, int(port)), timeout=10)
    peer.sendall(b"before")
    if peer.recv(100) != b"before":
        speech.give_up("the peer does not echo")

    def check() -> None:
        peer.sendall(b"after")
        if peer.recv(100) != b"after":
            speech.bad("the connection is broken")

    return check


def _child(body: Callable[[], None]) -> Check:
    """A child that does ``body``, says so, and sleeps."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            body()
            os.write(write, b"done")
        except OSError as error:
            os.write(write, f"{error}".encode())
        while True:
            signal.pause()
    os.close(write)
    if (said := os.read(read, 200)) != b"done":
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        speech.give_up(said.decode())

    def check() -> None:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except OSError as error:
            speech.bad(f"the child is gone: {error}")

    return check


def namespace(kind: str) -> Check:
    """A child in a namespace of its own."""

    def body() -> None:
        if libc.unshare(_CLONE[kind]) < 0:
            raise OSError(ctypes.get_errno(), f"unshare {kind}")

    return _child(body)


def traced() -> Check:
    """A child that is traced (PTRACE_SEIZE) by this process."""
    seize, detach = 0x4206, 17
    pids: list[int] = []
    ended = _child(lambda: None)
    pids += [int(p) for p in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    call("ptrace", seize, pids[0], 0, 0)

    def check() -> None:
        tracer = [
            line for line in Path(f"/proc/{pids[0]}/status").read_text().splitlines() if line.startswith("TracerPid")
        ]
        if tracer != [f"TracerPid:\t{os.getpid()}"]:
            speech.bad(f"the child is not traced any more: {tracer}")
        libc.syscall(ctypes.c_long(_NR["ptrace"]), ctypes.c_long(detach), ctypes.c_long(pids[0]), None, None)
        ended()

    return check


def device() -> Check:
    """Holds a device node open that nothing can restore."""
    for path in DEVICES:
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return lambda: os.close(fd)
    speech.give_up("no device can be opened")
    raise AssertionError


def eventfd_semaphore() -> Check:
    """Holds an eventfd that counts down by one: CRIU makes an ordinary one of it, which answers otherwise, silently."""
    semaphore = libc.eventfd(3, 1)  # EFD_SEMAPHORE
    if semaphore < 0:
        speech.give_up("eventfd")

    def check() -> None:
        for _ in range(3):
            if os.read(semaphore, 8) != (1).to_bytes(8, "little"):
                speech.bad("the eventfd is no semaphore")

    return check


def sysv() -> Check:
    """Holds a System V shared memory segment."""
    private, create = 0, 0o1600
    segment = call("shmget", private, 65536, create)

    def check() -> None:
        if libc.shmctl(segment, 0, None) != 0:  # IPC_RMID
            speech.bad("the segment is gone")

    return check


def message_queue() -> Check:
    """Holds a POSIX message queue."""
    name = b"hotstart-zoo"
    queue = libc.syscall(
        ctypes.c_long(_NR["mq_open"]), name, ctypes.c_long(os.O_CREAT | os.O_RDWR), ctypes.c_long(0o600), None
    )
    if queue < 0:
        speech.give_up(f"mq_open: {os.strerror(ctypes.get_errno())}")
    return lambda: os.close(queue)


KINDS: dict[str, Callable[[], Check]] = {
    "io-uring": io_uring,
    "inotify": inotify,
    "outside-tcp": outside_tcp,
    "user-namespace": lambda: namespace("user"),
    "uts-namespace": lambda: namespace("uts"),
    "net-namespace": lambda: namespace("net"),
    "traced": traced,
    "device": device,
    "eventfd-semaphore": eventfd_semaphore,
    "sysv": sysv,
    "message-queue": message_queue,
}


def main() -> None:
    """The workload."""
    check = KINDS[sys.argv[1]]()
    time.sleep(0.05)
    speech.ready()
    try:
        check()
    except OSError as error:
        speech.bad(f"{errno.errorcode.get(error.errno or 0)}: {error}")
    speech.done()


if __name__ == "__main__":
    main()
