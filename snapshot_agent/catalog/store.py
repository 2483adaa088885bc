"""What every snapshot store can do; a directory does it now, an object store joins later behind the same words.

A snapshot is either wholly there or not there.  It is immutable from the moment it is published until it is removed.
``tests/contract/test_store.py`` is this page as tests; whoever writes another store adds a fixture there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hotstart.durable import read_fd_bounded
from hotstart.errors import HotstartError
from hotstart.reasons import MANIFEST_INVALID
from hotstart.snapshot_agent.catalog import rules
from hotstart.snapshot_agent.catalog.manifest import LIMIT, MANIFEST_FILE, Manifest, decode

FileState = tuple[int, int, int, int, int, int, int]
"""Device, inode, size, mode, owner, mtime and ctime in nanoseconds."""


@dataclass
class Staging:
    """A directory that becomes the snapshot ``name``: files are written below ``path``, then it is published.

    ``fd`` holds the lock that says that somebody works here; it dies with the process.
    """

    name: str
    path: Path
    fd: int


@dataclass
class SnapshotHandle:
    """A published snapshot that cannot be removed while this is open: the lease dies with the process too.

    ``fd`` is the snapshot's directory and carries the lease.  ``verified`` is set by ``verify`` when it found every
    byte right: what the files looked like before it read them.
    """

    name: str
    path: Path
    fd: int
    verified: dict[str, FileState] | None = None
    _manifest: Manifest | None = field(default=None, repr=False)

    @property
    def manifest(self) -> Manifest:
        """The manifest, read once; raises ``manifest-invalid``, ``manifest-version``."""
        if self._manifest is None:
            self._manifest = _read_manifest(self.fd, self.name)
        return self._manifest

    def close(self) -> None:
        """Give the lease back; closing twice is harmless."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> SnapshotHandle:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Store(Protocol):
    """A place where snapshots lie.  Methods raise ``store-unusable`` when the place itself fails, and ``bad-name``."""

    def begin(self, name: str) -> Staging:
        """A fresh directory to write a snapshot into; raises ``snapshot-exists``.

        Several may be under way for one name; the first to be published wins.
        """

    def publish(self, staging: Staging, manifest: Manifest) -> None:
        """Make the snapshot visible and durable, all at once.

        Modes are set to 0600 and 0700, everything is flushed, the manifest is written last, and then the name appears.
        Raises ``snapshot-exists``, ``manifest-invalid`` (also if the files are not those that it lists), ``disk-full``;
        the staging directory is still there then, to be discarded.
        """

    def discard(self, staging: Staging) -> None:
        """Remove what was staged; harmless after ``publish`` and when called twice."""

    def names(self) -> list[str]:
        """Names of published snapshots, sorted."""

    def open(self, name: str) -> SnapshotHandle:
        """Lease a snapshot for reading; raises ``no-such-snapshot``."""

    def remove(self, name: str) -> int:
        """Remove a snapshot; returns the bytes freed.  Raises ``no-such-snapshot``, ``snapshot-busy`` while leased."""

    def free_bytes(self) -> int:
        """Room for further snapshots."""

    def sweep(self) -> list[str]:
        """Remove what crashed captures and removals left; returns the names that it was for.

        ``begin``, ``names`` and ``remove`` do it by themselves.
        """


def _read_manifest(directory: int, name: str) -> Manifest:
    try:
        fd = os.open(MANIFEST_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        raise HotstartError(MANIFEST_INVALID, f"the manifest of {name} cannot be read: {error.strerror}") from None
    try:
        data = read_fd_bounded(fd, LIMIT, f"the manifest of {name}")
    except HotstartError as error:
        raise HotstartError(MANIFEST_INVALID, error.detail) from None
    finally:
        os.close(fd)
    manifest = decode(data)
    rules.check(manifest)
    return manifest
