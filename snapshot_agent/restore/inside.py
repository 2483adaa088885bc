"""The helper program of a restore: enters the placeholder, puts files back, and starts CRIU there."""

from __future__ import annotations

from hotstart.snapshot_agent.restore.rootfs import apply_diff
from hotstart.snapshot_agent.restore.tmpfs import apply_tmpfs
from hotstart.snapshot_agent.sandbox import enter

TYPE_CHECKING = False  # as typing's: imports that cost milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def _rootfs(entry: dict[str, Any], fds: Mapping[str, int]) -> None:
    apply_diff(fds[entry["archive"]], "/")


def _tmpfs(entry: dict[str, Any], fds: Mapping[str, int]) -> None:
    apply_tmpfs(fds[entry["archive"]], entry["target"])


def main() -> None:
    """Entry point of the helper process."""
    enter.main({"rootfs": _rootfs, "tmpfs": _tmpfs, "kerndat": enter.place_kerndat})
