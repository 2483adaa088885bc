"""Remembers that a snapshot's files were right, and how they looked then, so that a restore need not read them all.

HOME/stamps/NAME.json holds device, inode, size, mode, owner, mtime and ctime of every file, taken before the bytes were
verified (or just after they were written).  As long as all of them are the same, nobody has changed a file through the
file system: ctime cannot be set back by a program.  That protects from accidents: a truncated copy, a replaced or
edited file, a restored backup, a half-removed directory.  It does not protect from root, who can forge the stamp as
well or set the clock, nor from a disk that returns other bytes than were written: ``hotstart snapshot verify`` reads
everything.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import msgspec

from hotstart.durable import read_bounded, write_file
from hotstart.errors import HotstartError
from hotstart.snapshot_agent.catalog import contents
from hotstart.snapshot_agent.catalog.store import FileState, SnapshotHandle

VERSION = 1
_LIMIT = 64 << 20
_TICK_NS = 20_000_000
"""File times advance with the kernel's tick, 1-10 ms: a change within the same tick would not show."""


class _Stamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: int
    files: dict[str, FileState]


def trusted(home: Path, handle: SnapshotHandle) -> bool:
    """True if every file of the snapshot is as it was when it was found right."""
    try:
        data = read_bounded(_path(home, handle.name), _LIMIT)
        stamp = msgspec.json.decode(data, type=_Stamp)
    except (OSError, HotstartError, msgspec.MsgspecError):
        return False  # no stamp is the ordinary case, an unreadable one no better
    return stamp.version == VERSION and stamp.files == states(handle)


def write(home: Path, handle: SnapshotHandle) -> bool:
    """Stamp a snapshot: call it only when ``verify`` found nothing, or when the caller has just published it.

    False, and no stamp, if a file changed since it was verified, or its time lies in the future.
    """
    seen = handle.verified if handle.verified is not None else states(handle)
    wait = (max(ctime for *_rest, ctime in seen.values()) + _TICK_NS - time.time_ns()) / 1e9
    if wait > _TICK_NS / 1e9:
        return False
    time.sleep(max(0.0, wait))
    if states(handle) != seen:
        return False
    path = _path(home, handle.name)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_file(path, msgspec.json.encode(_Stamp(version=VERSION, files=seen)), durable=False)
    return True


def forget(home: Path, name: str) -> None:
    """Remove the stamp of a snapshot that is gone."""
    _path(home, name).unlink(missing_ok=True)


def states(handle: SnapshotHandle) -> dict[str, FileState]:
    """How every file of the snapshot looks now; directories count by their names, modes and owners alone."""
    found: dict[str, FileState] = {}
    for path, status in (("", os.fstat(handle.fd)), *contents.walk(handle.fd)):
        directory = stat.S_ISDIR(status.st_mode)
        found[path] = (
            status.st_dev,
            status.st_ino,
            0 if directory else status.st_size,
            status.st_mode,
            status.st_uid,
            0 if directory else status.st_mtime_ns,
            0 if directory else status.st_ctime_ns,
        )
    return found


def _path(home: Path, name: str) -> Path:
    return home / "stamps" / f"{os.fspath(name)}.json"
