"""Reads every byte of a snapshot and compares it with the manifest: what is missing, changed, or too much."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hotstart.snapshot_agent.catalog import contents, stamp
from hotstart.snapshot_agent.catalog.manifest import MANIFEST_FILE, MEMORY_FILE, TABLE_FILE, FileEntry
from hotstart.snapshot_agent.catalog.store import SnapshotHandle

Progress = Callable[[float], None]
"""Called with the fraction done (0..1), from any thread."""
MemoryCheck = Callable[[Path, Path, Callable[[int, int], None]], list[str]]
"""(memory file, its table, progress(done, total)) → what is wrong with the memory file."""
_CHUNK = 1 << 20
_WORKERS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class Damage:
    """One way in which a file is not as it was published."""

    path: str
    what: str


def verify(handle: SnapshotHandle, progress: Progress | None = None, *, verify_memory: MemoryCheck) -> list[Damage]:
    """Everything that is wrong with a snapshot's files; an empty list means that every byte is right.

    ``verify_memory`` checks the memory file by the digests in its table (``memory.reader`` does; the catalog does not
    know that format).  Raises ``manifest-invalid`` if there is nothing to compare with.
    """
    handle.verified = None
    before = stamp.states(handle)
    listed = {file.path: file for file in handle.manifest.files}
    damage = _names(handle, listed)
    broken = {found.path for found in damage}
    told = _Told(progress, handle, [f for f in listed.values() if f.path not in broken])
    readable = [file for file in listed.values() if file.path not in broken and file.path != MEMORY_FILE]
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="verify") as pool:
        for file, digest in zip(readable, pool.map(lambda one: _digest(handle.fd, one, told), readable), strict=True):
            if digest != file.digest:
                damage.append(Damage(file.path, "has other bytes than at capture"))
                broken.add(file.path)
    if MEMORY_FILE in listed and MEMORY_FILE not in broken:
        damage += _memory(handle, verify_memory, told, table_is_sound=TABLE_FILE not in broken)
    if not damage:
        handle.verified = before
    return sorted(damage, key=lambda found: (found.path, found.what))


def _names(handle: SnapshotHandle, listed: dict[str, FileEntry]) -> list[Damage]:
    """Damage that shows without reading: names, kinds, sizes, modes, owners."""
    found: dict[str, os.stat_result] = dict(contents.walk(handle.fd))
    damage = [Damage(path, "is missing") for path in listed if path not in found]
    for path, status in found.items():
        is_directory = stat.S_ISDIR(status.st_mode)
        used = is_directory and any(name.startswith(f"{path}/") for name in listed)
        if path not in listed and path != MANIFEST_FILE and not used:
            damage.append(Damage(path, "does not belong to the snapshot"))
            continue
        if not is_directory and not stat.S_ISREG(status.st_mode):
            damage.append(Damage(path, "is not a plain file"))
            continue
        if path in listed and status.st_size != listed[path].bytes:
            damage.append(Damage(path, f"is {status.st_size} bytes long instead of {listed[path].bytes}"))
        mode = contents.DIRECTORY_MODE if is_directory else contents.FILE_MODE
        if stat.S_IMODE(status.st_mode) != mode:
            damage.append(Damage(path, f"has mode {stat.S_IMODE(status.st_mode):04o} instead of {mode:04o}"))
        if status.st_uid != os.geteuid():
            damage.append(Damage(path, f"belongs to user {status.st_uid} instead of {os.geteuid()}"))
    return damage


def _digest(fd: int, file: FileEntry, told: _Told) -> str:
    """Digest of a file's content, at most its listed size and one byte."""
    digest = hashlib.sha256()
    opened = contents.open_beneath(fd, file.path, os.O_RDONLY)
    try:
        position = 0
        while position <= file.bytes and (chunk := os.pread(opened, _CHUNK, position)):
            digest.update(chunk)
            position += len(chunk)
            told.more(len(chunk))
    finally:
        os.close(opened)
    return f"sha256:{digest.hexdigest()}"


def _memory(handle: SnapshotHandle, check: MemoryCheck, told: _Told, *, table_is_sound: bool) -> list[Damage]:
    if not table_is_sound:
        return [Damage(MEMORY_FILE, "cannot be checked, because its table is damaged")]
    reached = 0

    def advance(done: int, total: int) -> None:
        nonlocal reached
        share = told.memory_bytes * done // total if total else 0
        told.more(share - reached)
        reached = share

    wrong = check(handle.path / MEMORY_FILE, handle.path / TABLE_FILE, advance)
    return [Damage(MEMORY_FILE, what) for what in wrong]


class _Told:
    """Adds up what has been read and tells the fraction."""

    def __init__(self, progress: Progress | None, handle: SnapshotHandle, files: list[FileEntry]) -> None:
        self.progress = progress
        self.lock = threading.Lock()
        self.done = 0
        self.memory_bytes = 0
        self.total = 0
        for file in files:
            if file.path == MEMORY_FILE:
                self.memory_bytes = os.stat(file.path, dir_fd=handle.fd, follow_symlinks=False).st_blocks * 512
                self.total += self.memory_bytes
            else:
                self.total += file.bytes

    def more(self, count: int) -> None:
        with self.lock:
            self.done += count
            fraction = min(1.0, self.done / self.total) if self.total else 1.0
        if self.progress is not None:
            self.progress(fraction)
