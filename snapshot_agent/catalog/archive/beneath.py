"""Opening things of a hostile tree: below its root, through no symlink, into no other mount."""

from __future__ import annotations

import errno
import os

from hotstart.linux.syscalls import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2

_RESOLVE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
# NONBLOCK: a fifo put in a file's place must not stop us.  NOATIME: reading must not write into an upper directory.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOATIME | os.O_NOCTTY


def open_directory(root_fd: int, path: bytes) -> int:
    """The directory ``path`` (``.``: the root itself); raises OSError: EXDEV for a mount, ELOOP for a symlink."""
    return openat2(root_fd, os.fsdecode(path), _DIRECTORY, _RESOLVE)


def open_file(root_fd: int, path: bytes) -> int:
    """The file ``path`` for reading; the caller checks that it is the regular file that it expects."""
    return openat2(root_fd, os.fsdecode(path), _READ, _RESOLVE)


def is_mount(root_fd: int, path: bytes) -> bool:
    """True if something is mounted on ``path`` itself, of whatever kind it is."""
    try:
        os.close(openat2(root_fd, os.fsdecode(path), os.O_PATH | os.O_NOFOLLOW, _RESOLVE))
    except OSError as error:
        if error.errno == errno.EXDEV:
            return True
        raise
    return False


def join(directory: bytes, name: bytes) -> bytes:
    """Path of ``name`` in ``directory`` (``.``: the root)."""
    return name if directory == b"." else directory + b"/" + name


def split(path: bytes) -> tuple[bytes, bytes]:
    """Directory and name of ``path``; what lies in the root has the directory ``.``."""
    directory, _slash, name = path.rpartition(b"/")
    return directory or b".", name
