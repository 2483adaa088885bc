"""The control directory as both sides read and write it: bounded reads, no symlinks, replacement by rename."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hotstart.clock import Deadline
from hotstart.durable import read_fd_bounded, write_file
from hotstart.hooks.control import protocol
from hotstart.hooks.control.protocol import Adoption, ControlError, Order, Report, State
from hotstart.linux.syscalls import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, openat2
from hotstart.names import AGENT_DIR, WORKER_DIR

POLL_SECONDS = 0.004
T = TypeVar("T")


def new_nonce() -> str:
    """A fresh nonce for one operation."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class ControlDirectory:
    """``path`` as this side sees it (the agent: on the host; the worker: CONTROL_PATH)."""

    path: Path

    @classmethod
    def create(cls, path: Path, worker_uid: int = 0, worker_gid: int = 0) -> ControlDirectory:
        """Make the directory with its two halves; only the worker's user may write the worker's half."""
        path.mkdir(mode=0o755)
        (path / AGENT_DIR).mkdir(mode=0o755)
        (path / WORKER_DIR).mkdir(mode=0o755)
        os.chown(path / WORKER_DIR, worker_uid, worker_gid)
        return cls(path)

    def give(self, order: Order) -> None:
        """Agent: replace the order."""
        write_file(self.path / AGENT_DIR / protocol.ORDER_FILE, protocol.encode(order), mode=0o644, durable=False)

    def adopt(self, adoption: Adoption) -> None:
        """Agent: tell the supervisor what to adopt, or to cold start."""
        write_file(self.path / AGENT_DIR / protocol.ADOPTION_FILE, protocol.encode(adoption), mode=0o644, durable=False)

    def report(self, report: Report) -> None:
        """Worker: replace the state."""
        write_file(self.path / WORKER_DIR / protocol.STATE_FILE, protocol.encode(report), mode=0o644, durable=False)

    def order(self) -> Order | None:
        """The current order, or None; raises ControlError."""
        return self._read(f"{AGENT_DIR}/{protocol.ORDER_FILE}", protocol.decode_order)

    def order_mark(self) -> tuple[int, int, int, int] | None:
        """What changes whenever the order is replaced; None without one.

        Nothing is opened for it: a worker that polled by opening would, now and then, be dumped with the file open, and
        its copies have no such file when they wake up.
        """
        try:
            status = os.stat(self.path / AGENT_DIR / protocol.ORDER_FILE, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size

    def adoption(self) -> Adoption | None:
        """The current adoption, or None; raises ControlError."""
        return self._read(f"{AGENT_DIR}/{protocol.ADOPTION_FILE}", protocol.decode_adoption)

    def state(self) -> Report | None:
        """The worker's report, or None; raises ControlError (hostile input)."""
        return self._read(f"{WORKER_DIR}/{protocol.STATE_FILE}", protocol.decode_report)

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Agent: lock the directory for one operation; False if another agent has it.  The lock dies with its holder.

        What a killed holder left half written is removed.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            for path in (self.path / AGENT_DIR).glob(".*.tmp"):
                path.unlink(missing_ok=True)
            yield True
        finally:
            os.close(fd)

    def held(self) -> bool:
        """Worker: whether an agent has the directory locked; the lock dies with the agent, however it dies."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def wait_for(self, states: set[State], nonce: str, deadline: Deadline, alive: Callable[[], None]) -> Report:
        """Agent: wait until the worker reports one of ``states`` under ``nonce``.

        ``alive`` is called at each poll and raises when waiting has become pointless.  Raises ``deadline``, or
        ControlError for an unreadable report.
        """
        while True:
            report = self.state()
            if report is not None and report.nonce == nonce and report.state in states:
                return report
            alive()
            deadline.check()
            time.sleep(deadline.sooner(POLL_SECONDS))

    def _read(self, name: str, decode: Callable[[bytes], T]) -> T | None:
        try:
            base = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK
            fd = openat2(base, name, flags, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ControlError(f"{name}: {error}") from None
        finally:
            os.close(base)
        try:
            return decode(read_fd_bounded(fd, protocol.LIMIT, name))
        finally:
            os.close(fd)
