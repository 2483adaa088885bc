"""The process above a sandbox: makes it, reads its pipes into the log, writes how it ended.

Exec'ed fresh and detached, so that it outlives the command line that ordered the sandbox and forks from one thread.  It
lives on the host, outside the sandbox's cgroup, and holds nothing but the pipes, the log and the sandbox's lock.

If it dies, the sandbox runs on: the supervisor learns of it (PR_SET_PDEATHSIG), keeps the pipes open and empties them,
so the worker is neither killed by SIGPIPE nor blocked.  What the worker writes then, and its exit status, are lost.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import time

from hotstart.hooks.control.start import SPARE_FDS
from hotstart.linux.process import start_time
from hotstart.linux.syscalls import CLONE_NEWPID, fork_into
from hotstart.snapshot_agent.sandbox import network
from hotstart.snapshot_agent.sandbox.build import Failure, become_supervisor
from hotstart.snapshot_agent.sandbox.order import EXIT, LIVE, LIVES, LOG, failure, unpack

TYPE_CHECKING = False  # the real one comes with typing, which costs 5 ms
if TYPE_CHECKING:
    from typing import NoReturn

    from hotstart.snapshot_agent.sandbox.order import Order

CHUNK = 1 << 16
"""Bytes of one read: what a pipe holds."""
_HIGH_FD = 64
"""Descriptors are moved here first, clear of the numbers that the sandbox gets."""


def main() -> NoReturn:
    """Entry of BOOT, the order on standard input: never returns."""
    os.setsid()
    os.umask(0o022)
    answer, _lock = _move(int(sys.argv[-2])), _move(int(sys.argv[-1]))
    os._exit(run(answer))


def run(answer: int) -> int:
    """Make the sandbox of the order on standard input and stay until it has ended."""
    data = b""
    while chunk := os.read(0, CHUNK):
        data += chunk
    try:
        order = unpack(data)
    except (ValueError, EOFError, TypeError):
        return 1  # whoever ordered it is gone
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(null, 1)  # 2 is the log: should the shim itself fail, its last words are there
    try:
        link = network.create(order.base, order.size)
    except network.NoAddressLeft:
        return _refuse(answer, "addresses-exhausted", "every link of the sandbox network is taken")
    except OSError as error:
        return _refuse(answer, "network-unusable", f"making the network link: {error.strerror}")
    try:
        stdio = Stdio()
        init = fork_into(CLONE_NEWPID, os.open(order.unified, os.O_RDONLY | os.O_CLOEXEC) if order.unified else -1)
    except OSError as error:
        return _refuse(answer, "sandbox-start", f"making pid 1: {error.strerror}")
    if init == 0:
        _child(order, link.address, stdio, answer)
    stdio.keep_host_ends()
    _write(f"{order.directory}/{LIVE}", _live(init, link, order.boot))
    _tell(answer, LIVES)
    os.close(answer)
    status = pump(init, (stdio.out[0], stdio.err[0]), f"{order.directory}/{LOG}")
    code = os.waitstatus_to_exitcode(status)
    _write(f"{order.directory}/{EXIT}", f'{{"status":{code if code >= 0 else 128 - code},"ended":{time.time():.3f}}}\n')
    return 0


class Stdio:
    """The sandbox's three pipes, (read end, write end) each."""

    def __init__(self) -> None:
        self.into, self.out, self.err = (tuple(_move(end) for end in os.pipe()) for _ in range(3))

    def take_sandbox_ends(self) -> None:
        """In the child: stdio, and the other ends as SPARE_FDS."""
        mine = (self.into[0], self.out[1], self.err[1], self.out[0], self.err[0], self.into[1])
        for number, end in zip((0, 1, 2, *SPARE_FDS), mine, strict=True):
            os.dup2(end, number)

    def keep_host_ends(self) -> None:
        """In the shim: the standard input's write end stays open and silent."""
        for end in (self.into[0], self.out[1], self.err[1]):
            os.close(end)


def pump(init: int, pipes: tuple[int, ...], log_path: str) -> int:
    """Copy the pipes into the log until process ``init`` has ended; returns its wait status.

    A log that cannot be written (full disk) loses lines; the worker is not stopped for it.
    """
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    end = os.pidfd_open(init)
    poll = select.poll()
    for fd in (*pipes, end):
        poll.register(fd, select.POLLIN)
    while True:
        ready = [fd for fd, _events in poll.poll()]
        for fd in ready:
            if fd != end:
                chunk = os.read(fd, CHUNK)
                _append(log, chunk)
                if not chunk:
                    poll.unregister(fd)
        if end in ready:
            break
    _pid, status = os.waitpid(init, 0)
    for fd in pipes:  # what was written last
        os.set_blocking(fd, False)
        try:
            while chunk := os.read(fd, CHUNK):
                _append(log, chunk)
        except BlockingIOError:
            pass  # somebody outside the sandbox still holds a write end
    return status


def _move(fd: int) -> int:
    """The same descriptor under a high number, closed on exec."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
    os.close(fd)
    return moved


def _child(order: Order, address: str, stdio: Stdio, answer: int) -> NoReturn:
    try:
        stdio.take_sandbox_ends()
        become_supervisor(order, address)
    except Failure as error:
        _tell(answer, failure(error.code, str(error)))
    finally:
        os._exit(1)


def _live(init: int, link: network.Link, boot: str) -> str:
    shim = os.getpid()
    return (
        f'{{"init_pid":{init},"init_start":{start_time(init)},"shim_pid":{shim},"shim_start":{start_time(shim)},'
        f'"address":"{link.address}","gateway":"{link.gateway}","link":"{link.name}","link_index":{link.index},'
        f'"boot":"{boot}"}}\n'
    )


def _refuse(answer: int, code: str, detail: str) -> int:
    _tell(answer, failure(code, detail))
    return 1


def _tell(answer: int, message: bytes) -> None:
    try:
        os.write(answer, message)
    except BrokenPipeError:
        pass  # the maker has died; the sandbox is there all the same, and can be listed and stopped


def _append(log: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(log, data) :]
    except OSError:
        pass


def _write(path: str, text: str) -> None:
    """Like ``durable.write_file``, without its imports and its fsync: after a crash of the machine it says nothing."""
    temporary = f"{path}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
    os.rename(temporary, path)
