"""How large a tree's archive may become, for the check of disk space before a worker is disturbed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from hotstart.snapshot_agent.catalog.archive.beneath import join, open_directory

_PER_NAME = 2048
"""Header, extended header, padding; long names and large attributes take more, and are few."""


def upper_bound(root_fd: int) -> int:
    """Bytes that an archive of the tree may take; the tree may change meanwhile: a measure and no promise."""
    total = 8 * _PER_NAME
    pending = [b"."]
    while pending:
        path = pending.pop()
        with contextlib.suppress(OSError):  # gone, or a mount
            for name, status in _statuses(root_fd, path):
                total += _PER_NAME
                if stat.S_ISDIR(status.st_mode):
                    pending.append(join(path, name))
                elif stat.S_ISREG(status.st_mode):
                    total += status.st_blocks * 512
    return total


def _statuses(root_fd: int, path: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    fd = open_directory(root_fd, path)
    try:
        with os.scandir(fd) as listing:
            for found in listing:
                with contextlib.suppress(FileNotFoundError):
                    yield os.fsencode(found.name), found.stat(follow_symlinks=False)
    finally:
        os.close(fd)
