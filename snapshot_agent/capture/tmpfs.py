"""Contents of the worker's tmpfs mounts (/dev/shm, /run, /tmp): CRIU restores what refers to them, not them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hotstart.linux.syscalls import RESOLVE_IN_ROOT, RESOLVE_NO_SYMLINKS, openat2
from hotstart.reasons import TMPFS_COPY
from hotstart.snapshot_agent.capture.rootfs import relative
from hotstart.snapshot_agent.catalog.archive.failure import told_as
from hotstart.snapshot_agent.catalog.archive.measure import upper_bound
from hotstart.snapshot_agent.catalog.archive.write import write_tree


@dataclass(frozen=True)
class TmpfsCopy:
    """What the archive holds; ``bytes`` is its size, ``data_bytes`` the files' content without holes."""

    target: str
    entries: int
    skipped: tuple[bytes, ...]
    """Sockets and what is mounted inside, relative to the mount point."""
    bytes: int
    data_bytes: int


def write_tmpfs(root: Path | int, target: str, out: Path, *, skip: Iterable[str] = ()) -> TmpfsCopy:
    """Archive the mount at ``target`` (absolute, as the sandbox sees it) as the new file ``out``.

    ``root`` is ``/proc/PID/root`` of a process in the sandbox, or a descriptor of it.  Call it in CRIU's post-dump
    callback: CRIU's ``link_remap`` names exist just then, and share their inodes with names of the worker in the
    archive too.  ``skip`` are absolute paths as the sandbox sees them; what is mounted below ``target`` is left out
    anyway.  Raises ``tmpfs-copy-failed`` with the path, or ``disk-full``; no file is left then.  Nothing is flushed.
    """
    with told_as(TMPFS_COPY, f"archiving {target}"):
        fd = open_target(root, target)
        try:
            found, size = write_tree(fd, out, relative(skip, target), overlay=False)
        finally:
            os.close(fd)
    tree = found.tree
    data = sum(entry.data_bytes for entry in tree.entries)
    return TmpfsCopy(target, len(tree.entries), tuple(tree.skipped), size, data)


def estimate(root: Path | int, target: str) -> int:
    """Bytes that the archive of ``target`` may take, while the worker runs on; raises ``tmpfs-copy-failed``."""
    with told_as(TMPFS_COPY, f"measuring {target}"):
        fd = open_target(root, target)
        try:
            return upper_bound(fd)
        finally:
            os.close(fd)


def open_target(root: Path | int, target: str) -> int:
    """Descriptor of the directory ``target`` of a sandbox, reached from outside without leaving its root."""
    base = root if isinstance(root, int) else os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return openat2(base, target, os.O_RDONLY | os.O_DIRECTORY, RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS)
    finally:
        if not isinstance(root, int):
            os.close(base)
