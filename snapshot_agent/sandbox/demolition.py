"""Removing a tree that a worker wrote: of any depth, following nothing.

``shutil.rmtree`` recurses, and a worker can nest directories deeper than an interpreter's stack.  Here every directory
that is found is first moved to the top, so the depth never exceeds two.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def demolish(top: Path) -> None:
    """Remove ``top`` and all below it; nothing happens if it is not there.  Raises OSError."""
    try:
        fd = os.open(top, _DIRECTORY)
    except FileNotFoundError:
        return
    try:
        _clear(fd)
    finally:
        os.close(fd)
    top.rmdir()


def _clear(top: int) -> None:
    fresh = (f".{os.urandom(8).hex()}.{number}" for number in itertools.count())
    while names := _unlink_files(top):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                inner = os.open(name, _DIRECTORY, dir_fd=top)
                try:
                    for below in _unlink_files(inner):
                        os.rename(below, next(fresh), src_dir_fd=inner, dst_dir_fd=top)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)


def _unlink_files(fd: int) -> list[str]:
    """Unlink everything in a directory that is not one; the names of those that are."""
    directories = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.name, dir_fd=fd)
    return directories
