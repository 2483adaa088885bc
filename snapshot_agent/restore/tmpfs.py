"""Fills a fresh sandbox's tmpfs mounts with a snapshot's contents (runs in the helper)."""

from __future__ import annotations

import os

from hotstart.errors import HotstartError
from hotstart.linux.syscalls import RESOLVE_IN_ROOT, RESOLVE_NO_SYMLINKS, openat2
from hotstart.reasons import MISSING_MOUNT, TMPFS_APPLY
from hotstart.snapshot_agent.catalog.archive.apply import apply_tree
from hotstart.snapshot_agent.catalog.archive.failure import told_as

TYPE_CHECKING = False  # as typing's: imports that cost milliseconds, in a helper on a restore's critical path
if TYPE_CHECKING:
    from typing import BinaryIO


def apply_tmpfs(archive: BinaryIO | int, target: str) -> int:
    """Put the contents of ``archive`` (opened on the host) into the mount at ``target``.

    To be called after setns(mnt) in a process of its own, before CRIU runs.  Big files are filled in parallel, holes
    stay holes, names that shared an inode share one again.  Returns the number of names.  Raises ``missing-mount`` if
    nothing is mounted there, ``tmpfs-apply-failed`` with the path, ``disk-full`` if the mount is too small; a malformed
    archive changes nothing.
    """
    with told_as(TMPFS_APPLY, f"filling {target}"):
        root_fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = openat2(root_fd, target, os.O_RDONLY | os.O_DIRECTORY, RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS)
        finally:
            os.close(root_fd)
        try:
            if os.fstat(fd).st_dev == os.stat("..", dir_fd=fd).st_dev:
                raise HotstartError(MISSING_MOUNT, f"nothing is mounted on {target}", tried=f"filling {target}")
            return len(apply_tree(archive if isinstance(archive, int) else archive.fileno(), fd).entries)
        finally:
            os.close(fd)
