"""Snapshots in a directory: HOME/snapshots/NAME, private to its owner.

Locks are flock(2) on the directories themselves, so no file is needed for them and they die with their holders:
exclusive on a staging directory while somebody writes it, shared on a snapshot for each reader, exclusive to remove it.
The directory of snapshots is locked for the moments in which a staging directory exists without its lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotstart import naming
from hotstart.clock import Deadline
from hotstart.durable import fsync_dir, publish_dir, write_file
from hotstart.errors import HotstartError
from hotstart.reasons import (
    DISK_FULL,
    MANIFEST_INVALID,
    NO_SUCH_SNAPSHOT,
    SNAPSHOT_BUSY,
    SNAPSHOT_EXISTS,
    STORE_UNUSABLE,
)
from hotstart.snapshot_agent.catalog import contents, rules
from hotstart.snapshot_agent.catalog.contents import DIRECTORY_MODE, FILE_MODE
from hotstart.snapshot_agent.catalog.manifest import LIMIT, MANIFEST_FILE, Manifest, decode, encode
from hotstart.snapshot_agent.catalog.store import SnapshotHandle, Staging

_STAGING = ".staging."
_REMOVED = ".removed."
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_SECONDS = 10.0
"""Readers meet only those who publish or remove a snapshot, and everybody the directory's lock for moments."""
_REMOVE_SECONDS = 0.25
"""Who removes meets readers, and they may stay."""
_POLL_SECONDS = 0.005


class DirectoryStore:
    """The ``Store`` below a home directory; makes its directory when it first writes."""

    def __init__(self, home: Path) -> None:
        self.path = home / "snapshots"

    def begin(self, name: str) -> Staging:
        """See ``Store``."""
        naming.check(name, "snapshot")
        with _failures("preparing a snapshot"):
            self._make()
            self.sweep()
            if os.path.lexists(self.path / name):
                raise _exists(name)
            path = self.path / f"{_STAGING}{name}.{secrets.token_hex(6)}"
            with self._locked():
                path.mkdir(mode=DIRECTORY_MODE)
                fd = os.open(path, _DIRECTORY)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return Staging(name, path, fd)

    def publish(self, staging: Staging, manifest: Manifest) -> None:
        """See ``Store``."""
        with _failures("publishing the snapshot"):
            directories = _compare(staging, manifest)
            data = encode(manifest)
            if len(data) > LIMIT or decode(data) != manifest:  # a number that is none, for example
                raise HotstartError(MANIFEST_INVALID, f"the manifest's {len(data)} bytes cannot be read back")
            contents.secure_and_flush(staging.fd, [file.path for file in manifest.files], directories)
            os.fchmod(staging.fd, DIRECTORY_MODE)
            write_file(staging.path / MANIFEST_FILE, data, mode=FILE_MODE)
            try:
                publish_dir(staging.path, self.path / staging.name)
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                    (staging.path / MANIFEST_FILE).unlink(missing_ok=True)
                    raise _exists(staging.name) from None
                raise
        _close(staging)

    def discard(self, staging: Staging) -> None:
        """See ``Store``."""
        if staging.fd < 0:
            return
        try:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(staging.path)
        finally:
            _close(staging)

    def names(self) -> list[str]:
        """See ``Store``."""
        with _failures("listing snapshots"):
            if not self._check():
                return []
            self.sweep()
            return [
                name for name in sorted(os.listdir(self.path)) if naming.valid(name) and (self.path / name).is_dir()
            ]

    def open(self, name: str) -> SnapshotHandle:
        """See ``Store``."""
        naming.check(name, "snapshot")
        with _failures(f"opening snapshot {name}"):
            return SnapshotHandle(name, self.path / name, self._lock(name, fcntl.LOCK_SH, _LOCK_SECONDS))

    def remove(self, name: str) -> int:
        """See ``Store``."""
        naming.check(name, "snapshot")
        with _failures(f"removing snapshot {name}"):
            fd = self._lock(name, fcntl.LOCK_EX, _REMOVE_SECONDS)
            try:
                self.sweep()
                freed = sum(status.st_blocks * 512 for _path, status in contents.walk(fd))
                gone = self.path / f"{_REMOVED}{name}.{secrets.token_hex(6)}"
                os.rename(self.path / name, gone)  # from here on nobody finds it, whatever happens to us
                fsync_dir(self.path)
                shutil.rmtree(gone)
                return freed
            finally:
                os.close(fd)

    def free_bytes(self) -> int:
        """See ``Store``."""
        with _failures("looking for room"):
            place = next(path for path in (self.path, *self.path.parents) if path.exists())
            found = os.statvfs(place)
            return found.f_bavail * found.f_frsize

    def sweep(self) -> list[str]:
        """See ``Store``."""
        with _failures("clearing what crashed operations left"):
            if not self._check():
                return []
            left = [name for name in os.listdir(self.path) if name.startswith((_STAGING, _REMOVED))]
            return sorted(_owner(name) for name in left if self._clear(self.path / name))

    def _clear(self, left: Path) -> bool:
        """Remove a left-over, unless its lock says that somebody works there."""
        with self._locked():
            try:
                fd = os.open(left, _DIRECTORY)
            except FileNotFoundError:
                return False
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return False
        try:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(left)
            return True
        finally:
            os.close(fd)

    def _lock(self, name: str, kind: int, patience: float) -> int:
        """Descriptor of the snapshot's directory with a lock of ``kind``; raises as ``open`` and ``remove`` do."""
        path = self.path / name
        deadline = Deadline.after(patience, f"snapshot {name}")
        while True:
            try:
                fd = os.open(path, _DIRECTORY)
            except (FileNotFoundError, NotADirectoryError):
                raise HotstartError(NO_SUCH_SNAPSHOT, f"there is no snapshot {name}") from None
            try:
                _check_private(path, os.fstat(fd))
                if _try_lock(fd, kind) and _is_same(path, fd):
                    locked, fd = fd, -1
                    return locked
            finally:
                if fd >= 0:
                    os.close(fd)
            if deadline.expired():
                raise HotstartError(SNAPSHOT_BUSY, f"snapshot {name} is being read")
            time.sleep(deadline.sooner(_POLL_SECONDS))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone with the directory of snapshots, for moments."""
        deadline = Deadline.after(_LOCK_SECONDS, f"the lock of {self.path}")
        fd = os.open(self.path, _DIRECTORY)
        try:
            while not _try_lock(fd, fcntl.LOCK_EX):
                deadline.check()
                time.sleep(deadline.sooner(_POLL_SECONDS))
            yield
        finally:
            os.close(fd)

    def _make(self) -> None:
        self.path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        self.path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        self._check()

    def _check(self) -> bool:
        """False if there is no directory of snapshots yet; raises ``store-unusable`` if others may write in it."""
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            return False
        _check_private(self.path, status)
        return True


def _owner(left: str) -> str:
    """The snapshot's name in the name of a left-over."""
    return left.removeprefix(_STAGING).removeprefix(_REMOVED).rpartition(".")[0]


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(path: Path, fd: int) -> bool:
    """True if ``path`` is still the directory behind ``fd``: it may have been removed before we had the lock."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise HotstartError(STORE_UNUSABLE, f"{path} is not a directory")
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        owner = f"user {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}"
        raise HotstartError(STORE_UNUSABLE, f"{path} is open to others ({owner})", next_step=f"chmod 700 {path}")


def _compare(staging: Staging, manifest: Manifest) -> list[str]:
    """Raise ``manifest-invalid`` unless the manifest lists exactly what was staged; returns the subdirectories."""
    rules.check(manifest)
    found: dict[str, int] = {}
    directories = []
    for path, status in contents.walk(staging.fd):
        if stat.S_ISDIR(status.st_mode):
            directories.append(path)
        elif stat.S_ISREG(status.st_mode):
            found[path] = status.st_size
        else:
            raise HotstartError(MANIFEST_INVALID, f"{path} is not a plain file")
    listed = {file.path: file.bytes for file in manifest.files}
    different = sorted(path for path in found.keys() | listed.keys() if found.get(path) != listed.get(path))
    different += [path for path in directories if not any(file.startswith(f"{path}/") for file in listed)]
    if manifest.name != staging.name or different:
        wrong = different[0] if different else f"the name {manifest.name}"
        raise HotstartError(MANIFEST_INVALID, f"the manifest does not describe what was captured: {wrong}")
    return directories


def _exists(name: str) -> HotstartError:
    return HotstartError(SNAPSHOT_EXISTS, f"there is a snapshot {name} already")


def _close(staging: Staging) -> None:
    if staging.fd >= 0:
        os.close(staging.fd)
        staging.fd = -1


@contextmanager
def _failures(tried: str) -> Iterator[None]:
    """What the operating system refuses leaves with a reason."""
    try:
        yield
    except OSError as error:
        reason = DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else STORE_UNUSABLE
        where = f"{error.filename}: " if error.filename else ""
        raise HotstartError(reason, f"{where}{error.strerror or error}", tried=tried) from error
