"""What the worker changed in its root file system: the overlay's upper directory as an archive."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hotstart.reasons import ROOTFS_DIFF
from hotstart.snapshot_agent.catalog.archive.failure import told_as
from hotstart.snapshot_agent.catalog.archive.measure import upper_bound
from hotstart.snapshot_agent.catalog.archive.write import write_tree


@dataclass(frozen=True)
class RootfsDiff:
    """What the archive holds; ``bytes`` is its size."""

    entries: int
    whiteouts: int
    opaque: int
    skipped: tuple[bytes, ...]
    """Sockets and mount points, relative to the root."""
    bytes: int


def write_diff(upper: Path, out: Path, *, skip_mounts: Iterable[str]) -> RootfsDiff:
    """Archive the upper directory ``upper`` (a host path) as the new file ``out``, while the worker is frozen.

    ``skip_mounts`` are the sandbox's mount points as it sees them (``/run``, ``/proc`` …; ``/`` means nothing here):
    what lies there in the upper directory is hidden from the worker and not its own.  Raises ``rootfs-diff-failed``
    with the path, or ``disk-full``; no file is left then.  The file is not flushed (publishing does that).
    """
    with told_as(ROOTFS_DIFF, "archiving the root file system's changes"):
        fd = os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found, size = write_tree(fd, out, relative(skip_mounts, "/"), overlay=True)
        finally:
            os.close(fd)
    tree = found.tree
    return RootfsDiff(len(tree.entries), len(tree.whiteouts), len(tree.opaque), tuple(tree.skipped), size)


def estimate(upper: Path) -> int:
    """Bytes that the archive of ``upper`` may take, while the worker runs on; raises ``rootfs-diff-failed``."""
    with told_as(ROOTFS_DIFF, "measuring the root file system's changes"):
        fd = os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return upper_bound(fd)
        finally:
            os.close(fd)


def relative(paths: Iterable[str], top: str) -> list[bytes]:
    """Those of the absolute ``paths`` that lie below ``top``, relative to it (pure)."""
    prefix = top.rstrip("/") + "/"
    inside = (path.rstrip("/") for path in paths if path.startswith(prefix))
    return [os.fsencode(path[len(prefix) :]) for path in inside if len(path) > len(prefix)]
