"""A local sandbox's files on disk: what it was made from, who runs, how it ended.

sandbox.json   Record, written by the maker before anything else; never changes
live.json      Live, written by the shim once pid 1 exists
exit.json      Exit, written by the shim when pid 1 has ended
lock           locked (flock) by the maker and then by the shim for as long as they work on the sandbox
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from hotstart.durable import read_bounded, write_file
from hotstart.errors import HotstartError
from hotstart.linux.process import alive, boot_id
from hotstart.reasons import NO_SUCH_SANDBOX, SANDBOX_START
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec
from hotstart.snapshot_agent.sandbox.order import EXIT, LIVE

SANDBOXES, RECORD, LOCK = "sandboxes", "sandbox.json", "lock"
LIMIT = 16 << 20
"""No file here is larger than this many bytes."""
T = TypeVar("T")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a sandbox was made from."""

    spec: SandboxSpec
    placeholder: bool
    created: str
    """UTC, RFC 3339."""
    restored_from: str


class Live(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who runs."""

    init_pid: int
    init_start: int
    shim_pid: int
    shim_start: int
    address: str
    gateway: str
    link: str
    link_index: int
    boot: str

    def lives(self) -> bool:
        """True while pid 1 of the sandbox lives."""
        return self.boot == boot_id() and alive(self.init_pid, self.init_start)


class Exit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How it ended."""

    status: int
    """Exit status, 128 + signal if a signal killed it."""
    ended: float
    """Seconds since the epoch."""


def directory(home: Path, name: str) -> Path:
    """The directory of the sandbox ``name``."""
    return home / SANDBOXES / name


def write_record(where: Path, record: Record) -> None:
    """Write what a sandbox is made from; raises OSError."""
    write_file(where / RECORD, msgspec.json.encode(record), durable=False)


def read_record(where: Path) -> Record:
    """Raises ``no-such-sandbox``, or ``sandbox-start`` if its making was cut off before the record was written."""
    record = _read(where / RECORD, Record)
    if record is not None:
        return record
    if where.is_dir():
        raise HotstartError(SANDBOX_START, f"the sandbox {where.name} was never finished", next_step="stop it")
    raise HotstartError(NO_SUCH_SANDBOX, f"there is no sandbox {where.name}")


def read_live(where: Path) -> Live | None:
    """Who runs; None before pid 1 exists."""
    return _read(where / LIVE, Live)


def read_exit(where: Path) -> Exit | None:
    """How it ended; None while it lives, or if its shim died first."""
    return _read(where / EXIT, Exit)


class Lock:
    """The lock of a sandbox's directory; the shim inherits the descriptor, and the lock with it."""

    def __init__(self, where: Path) -> None:
        self.fd = os.open(where / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def take(self) -> bool:
        """Take it if nobody has it."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self.fd)


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        data = read_bounded(path, LIMIT)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise HotstartError(SANDBOX_START, f"{path} cannot be read: {error}", next_step="stop the sandbox") from None
