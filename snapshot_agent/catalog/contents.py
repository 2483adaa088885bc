"""The files of a snapshot directory as they are: walked without following anything, flushed side by side."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from hotstart.linux.syscalls import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, openat2

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_FLUSHERS = 16
"""350 files: 80-100 ms with 16 threads, whose flushes share journal commits; 110-1,900 ms one after the other."""


def walk(fd: int) -> Iterator[tuple[str, os.stat_result]]:
    """Every name below the directory ``fd`` with its lstat, parents first; what is not a directory is never opened."""
    pending = [""]
    while pending:
        prefix = pending.pop()
        below = open_beneath(fd, prefix or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(below) as listing:
                for found in sorted(listing, key=lambda one: one.name):
                    path = f"{prefix}{found.name}"
                    status = found.stat(follow_symlinks=False)
                    yield path, status
                    if stat.S_ISDIR(status.st_mode):
                        pending.append(f"{path}/")
        finally:
            os.close(below)


def open_beneath(fd: int, path: str, flags: int) -> int:
    """Open a name below the directory ``fd``, through no symlink."""
    return openat2(fd, path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)


def secure_and_flush(fd: int, files: Iterable[str], directories: Iterable[str]) -> None:
    """Give files and directories their modes and make them durable, each directory after what is in it."""

    def one(path: str, mode: int) -> None:
        opened = open_beneath(fd, path, os.O_RDONLY)
        try:
            os.fchmod(opened, mode)
            os.fsync(opened)
        finally:
            os.close(opened)

    with ThreadPoolExecutor(_FLUSHERS, thread_name_prefix="flush") as pool:
        for done in [pool.submit(one, path, FILE_MODE) for path in files]:
            done.result()
    for path in sorted(directories, reverse=True):
        one(path, DIRECTORY_MODE)
