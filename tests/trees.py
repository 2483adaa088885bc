"""What a file tree holds, for comparing two of them byte by byte."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path


def describe(root: Path | str, skip: frozenset[bytes] = frozenset()) -> dict[bytes, tuple[object, ...]]:
    """Every name below ``root`` (``.`` is the root) with everything that can be known of it without a clock.

    Names that share an inode get the same group: the first of them in byte order.
    """
    top = os.fsencode(root)
    found: dict[bytes, tuple[object, ...]] = {}
    groups: dict[tuple[int, int], bytes] = {}
    pending = [b"."]
    while pending:
        path = pending.pop()
        full = os.path.join(top, path)
        status = os.lstat(full)
        group = groups.setdefault((status.st_dev, status.st_ino), path)
        found[path] = (*_attributes(full, status), group, *_content(full, status))
        if stat.S_ISDIR(status.st_mode):
            names = sorted(os.listdir(full), reverse=True)
            below = [name if path == b"." else path + b"/" + name for name in names]
            pending += [child for child in below if child not in skip]
    return dict(sorted(found.items()))


def _attributes(full: bytes, status: os.stat_result) -> tuple[object, ...]:
    xattrs = {}
    for name in os.listxattr(full, follow_symlinks=False):
        if not name.startswith(("security.selinux", "trusted.overlay.")):
            xattrs[name] = os.getxattr(full, name, follow_symlinks=False)
    return oct(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns, tuple(sorted(xattrs.items()))


def _content(full: bytes, status: os.stat_result) -> tuple[object, ...]:
    if stat.S_ISLNK(status.st_mode):
        return ("->", os.readlink(full))
    if stat.S_ISREG(status.st_mode):
        return (status.st_size, *_data(full, status.st_size))
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        return (os.major(status.st_rdev), os.minor(status.st_rdev))
    return ()


def _data(full: bytes, size: int) -> tuple[object, ...]:
    """Digest of the content, and which pieces of it are data."""
    digest, pieces, position = hashlib.sha256(), [], 0
    fd = os.open(full, os.O_RDONLY)
    try:
        while position < size:
            try:
                start = os.lseek(fd, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break
                raise
            end = os.lseek(fd, start, os.SEEK_HOLE)
            for offset in range(start, end, 1 << 20):
                digest.update(b"%d:" % offset + os.pread(fd, min(1 << 20, end - offset), offset))
            pieces.append((start, end))
            position = end
    finally:
        os.close(fd)
    return digest.hexdigest(), tuple(pieces)
