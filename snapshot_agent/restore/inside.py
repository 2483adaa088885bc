"""The helper program of a restore: enters the placeholder, puts files back, and starts CRIU there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hotstart.snapshot_agent.restore.rootfs import apply_diff
from hotstart.snapshot_agent.restore.tmpfs import apply_tmpfs

from hotstart.snapshot_agent.sandbox import enter

_KERNDAT = "/run/criu.kdat"


def _rootfs(entry: dict[str, Any], fds: Mapping[str, int]) -> None:
    with os.fdopen(os.dup(fds[entry["archive"]]), "rb") as archive:
        archive.seek(0)
        apply_diff(archive, "/")


def _tmpfs(entry: dict[str, Any], fds: Mapping[str, int]) -> None:
    with os.fdopen(os.dup(fds[entry["archive"]]), "rb") as archive:
        archive.seek(0)
        apply_tmpfs(archive, entry["target"])


def _kerndat(_entry: dict[str, Any], fds: Mapping[str, int]) -> None:
    """Give CRIU its own cache of kernel features, taken on this machine since it booted; never the worker's copy."""
    if os.path.lexists(_KERNDAT):
        os.unlink(_KERNDAT)
    if "kerndat" in fds:
        data = os.pread(fds["kerndat"], 1 << 20, 0)
        fd = os.open(_KERNDAT, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)


def main() -> None:
    """Entry point of the helper process."""
    enter.main({"rootfs": _rootfs, "tmpfs": _tmpfs, "kerndat": _kerndat})
