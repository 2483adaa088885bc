"""Files that survive a crash: written under a temporary name, fsync'ed, renamed, and the directory fsync'ed."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from hotstart.errors import HotstartError
from hotstart.reasons import FILE_TOO_LARGE, NOT_A_PLAIN_FILE

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def fsync_dir(path: Path) -> None:
    """Make the entries of a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace ``path`` by ``data`` at once; readers see the old content or the new, never a part.

    ``durable=False`` leaves out the two fsyncs, for files that need not outlive a crash of the machine.
    Raises OSError; nothing is left behind then.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:  # around the opening too: Ctrl-C may come right behind it
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, mode)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        fsync_dir(path.parent)


def read_bounded(path: Path | str, limit: int, *, dir_fd: int | None = None) -> bytes:
    """Read a whole regular file of at most ``limit`` bytes without following a symlink at its last component.

    Raises FileNotFoundError, or HotstartError ``not-a-plain-file`` / ``file-too-large``.
    """
    fd = os.open(path, _READ_FLAGS, dir_fd=dir_fd)
    try:
        return read_fd_bounded(fd, limit, str(path))
    finally:
        os.close(fd)


def read_fd_bounded(fd: int, limit: int, label: str) -> bytes:
    """Read the regular file behind ``fd`` to its end, at most ``limit`` bytes; ``label`` names it in errors."""
    import stat

    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise HotstartError(NOT_A_PLAIN_FILE, f"{label} is not a plain file")
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(fd, min(1 << 20, limit + 1 - size)):
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise HotstartError(FILE_TOO_LARGE, f"{label} is larger than {limit} bytes")
    return b"".join(chunks)


def publish_dir(staging: Path, final: Path) -> None:
    """Publish a finished directory by rename; fails with FileExistsError/OSError(ENOTEMPTY) if ``final`` exists.

    Every file of ``staging`` must have been fsync'ed by its writer; the directories are fsync'ed here.
    """
    fsync_dir(staging)
    rename_noreplace(staging, final)
    fsync_dir(final.parent)


def rename_noreplace(source: Path, target: Path) -> None:
    """rename(2) that never replaces (renameat2 RENAME_NOREPLACE)."""
    from hotstart.linux.syscalls import renameat2_noreplace

    renameat2_noreplace(os.fspath(source), os.fspath(target))
