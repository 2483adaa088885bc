"""Applies a snapshot's root file system changes through the merged tree of a fresh sandbox (runs in the helper)."""

from __future__ import annotations

import os

from hotstart.reasons import ROOTFS_APPLY
from hotstart.snapshot_agent.catalog.archive.apply import apply_tree
from hotstart.snapshot_agent.catalog.archive.failure import told_as

TYPE_CHECKING = False  # as typing's: imports that cost milliseconds, in a helper on a restore's critical path
if TYPE_CHECKING:
    from typing import BinaryIO


def apply_diff(tar: BinaryIO | int, root: str = "/") -> int:
    """Apply the archive ``tar`` (opened on the host, before the mount namespace was entered) to ``root``.

    To be called after setns(mnt) in a process of its own.  Writing goes through the merged tree, where overlayfs makes
    whiteouts of its own: writing into a mounted upper directory is undefined.  Returns the number of names handled.
    Raises ``rootfs-apply-failed`` with the path, or ``disk-full``; a malformed archive changes nothing.
    """
    with told_as(ROOTFS_APPLY, "applying the root file system's changes"):
        root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            tree = apply_tree(tar if isinstance(tar, int) else tar.fileno(), root_fd)
        finally:
            os.close(root_fd)
    return len(tree.entries) + len(tree.whiteouts)
