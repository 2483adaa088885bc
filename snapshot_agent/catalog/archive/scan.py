"""Walks a tree that a worker wrote and tells what an archive of it has to hold; reads names and attributes, no data."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable

from hotstart.snapshot_agent.catalog.archive import format as form
from hotstart.snapshot_agent.catalog.archive.beneath import is_mount, join, open_directory, open_file
from hotstart.snapshot_agent.catalog.archive.failure import TreeError, at
from hotstart.snapshot_agent.catalog.archive.format import Entry, Tree

_SMALLEST_HOLE = 4096
_OVERLAY = b"trusted.overlay."
_OVERLAY_OWN = frozenset(_OVERLAY + word for word in (b"origin", b"impure", b"nlink", b"uuid", b"upper"))
"""What overlayfs notes for itself; a new overlay makes its own notes."""
_OVERLAY_OPAQUE = _OVERLAY + b"opaque"
_OVERLAY_WHITEOUT = _OVERLAY + b"whiteout"

_KINDS = {
    stat.S_IFREG: form.FILE,
    stat.S_IFLNK: form.SYMLINK,
    stat.S_IFCHR: form.CHARACTER,
    stat.S_IFBLK: form.BLOCKDEV,
    stat.S_IFIFO: form.FIFO,
    stat.S_IFDIR: form.DIRECTORY,
}


class Scan:
    """A tree, and for each file with data its (device, inode): what is copied later must be what was seen here."""

    __slots__ = ("inodes", "tree")

    def __init__(self) -> None:
        self.tree = Tree()
        self.inodes: dict[bytes, tuple[int, int]] = {}


def scan(root_fd: int, skip: Iterable[bytes], *, overlay: bool) -> Scan:
    """Walk the tree below ``root_fd``, parents first, names in byte order.

    ``skip`` are paths relative to the root that are left out with all that is below; sockets are left out too (CRIU
    binds them anew), and everything that is mounted somewhere in the tree.  ``overlay``: the tree is the upper
    directory of an overlayfs, whose marks are read and not carried.  Raises TreeError, OSError.
    """
    return _Walk(root_fd, frozenset(skip), overlay).run()


class _Walk:
    def __init__(self, root_fd: int, skip: frozenset[bytes], overlay: bool) -> None:
        self.root_fd = root_fd
        self.skip = skip
        self.overlay = overlay
        self.result = Scan()
        self.tree = self.result.tree
        self.first_names: dict[tuple[int, int], bytes] = {}

    def run(self) -> Scan:
        pending = [form.ROOT]
        while pending:
            path = pending.pop()
            try:
                fd = open_directory(self.root_fd, path)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise at(path, error) from None
                self.tree.skipped.append(path)
                continue
            try:
                pending += reversed(self.directory(fd, path))
            finally:
                os.close(fd)
        return self.result

    def directory(self, fd: int, path: bytes) -> list[bytes]:
        """Take one directory and what it holds; returns its subdirectories."""
        self.tree.entries.append(self.entry(path, os.fstat(fd), fd))
        with os.scandir(fd) as listing:
            names = sorted((os.fsencode(found.name), found) for found in listing)
        below = []
        for name, found in names:
            child = join(path, name)
            try:
                if self.name(child, found, b"/proc/self/fd/%d/%b" % (fd, name)):
                    below.append(child)
            except OSError as error:
                raise at(child, error) from None
        return below

    def name(self, path: bytes, found: os.DirEntry[str], reach: bytes) -> bool:
        """Take one name of a directory; True if it is a directory to be walked."""
        if path in self.skip:
            self.tree.skipped.append(path)
            return False
        status = found.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            return True
        if stat.S_ISSOCK(status.st_mode) or (not self.overlay and is_mount(self.root_fd, path)):
            self.tree.skipped.append(path)
        else:
            self.other(path, status, reach)
        return False

    def other(self, path: bytes, status: os.stat_result, reach: bytes) -> None:
        """Take what is not a directory."""
        if self.overlay and stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
            self.tree.whiteouts.append(path)
            return
        inode = (status.st_dev, status.st_ino)
        if status.st_nlink > 1:
            first = self.first_names.setdefault(inode, path)
            if first != path:
                self.tree.entries.append(Entry(path, form.LINK, link=first))
                return
        entry = self.entry(path, status, reach)
        if entry.kind == form.SYMLINK:
            entry.link = os.readlink(reach)
        elif entry.kind in (form.CHARACTER, form.BLOCKDEV):
            entry.device = (os.major(status.st_rdev), os.minor(status.st_rdev))
        elif entry.kind == form.FILE and status.st_size:
            entry.size = status.st_size
            entry.segments = self.segments(path, status)
            self.result.inodes[path] = inode
        if self.tree.whiteouts[-1:] != [path]:
            self.tree.entries.append(entry)

    def entry(self, path: bytes, status: os.stat_result, reach: int | bytes) -> Entry:
        """What every kind has: owner, mode, time, extended attributes."""
        kind = _KINDS.get(stat.S_IFMT(status.st_mode))
        if kind is None:
            raise TreeError(path, "is of a kind that cannot be carried")
        if len(path) > form.PATH_LIMIT:
            raise TreeError(path, "lies too deep")
        return Entry(
            path,
            kind,
            # A symlink's own mode says nothing and cannot be set.
            mode=0o777 if kind == form.SYMLINK else stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            mtime_ns=status.st_mtime_ns,
            xattrs=self.xattrs(path, reach, status),
        )

    def xattrs(self, path: bytes, reach: int | bytes, status: os.stat_result) -> dict[bytes, bytes]:
        """Extended attributes that travel; overlayfs's own marks are obeyed."""
        kept: dict[bytes, bytes] = {}
        for text in _listed(reach):
            name = os.fsencode(text)
            if self.overlay and name.startswith(_OVERLAY):
                self.mark(path, name, reach, status)
            elif form.carried(name):
                kept[name] = _value(reach, text)
        return kept

    def mark(self, path: bytes, name: bytes, reach: int | bytes, status: os.stat_result) -> None:
        """One of overlayfs's marks: note what it says, or refuse."""
        if name in _OVERLAY_OWN:
            return
        if name == _OVERLAY_OPAQUE and stat.S_ISDIR(status.st_mode):
            value = _value(reach, os.fsdecode(name))
            if value == b"y":
                self.tree.opaque.append(path)
                return
            if value == b"x":  # it may hold whiteouts in xattr form, which are seen below
                return
        if name == _OVERLAY_WHITEOUT and stat.S_ISREG(status.st_mode) and not status.st_size:
            self.tree.whiteouts.append(path)
            return
        raise TreeError(
            path, f"overlayfs marks it {name.decode(errors='replace')}: the upper directory is not complete"
        )

    def segments(self, path: bytes, status: os.stat_result) -> tuple[tuple[int, int], ...]:
        """The pieces of a file that are data."""
        size = status.st_size
        if size < _SMALLEST_HOLE or status.st_blocks * 512 >= size:
            return ((0, size),)
        fd = open_file(self.root_fd, path)
        try:
            check_same(fd, path, (status.st_dev, status.st_ino))
            return _data(fd, path, size)
        finally:
            os.close(fd)


def check_same(fd: int, path: bytes, inode: tuple[int, int]) -> None:
    """Raise TreeError unless ``fd`` is still the regular file that was seen under that name."""
    now = os.fstat(fd)
    if not stat.S_ISREG(now.st_mode) or (now.st_dev, now.st_ino) != inode:
        raise TreeError(path, "was replaced while it was being copied")


def _data(fd: int, path: bytes, size: int) -> tuple[tuple[int, int], ...]:
    pieces: list[tuple[int, int]] = []
    position = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                break
            raise
        if start >= size:
            break
        position = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        pieces.append((start, position - start))
        if len(pieces) > form.SEGMENTS_LIMIT:
            raise TreeError(path, f"is in more than {form.SEGMENTS_LIMIT} pieces")
    return tuple(pieces)


def _listed(reach: int | bytes) -> list[str]:
    try:
        return os.listxattr(reach) if isinstance(reach, int) else os.listxattr(reach, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise


def _value(reach: int | bytes, name: str) -> bytes:
    return os.getxattr(reach, name) if isinstance(reach, int) else os.getxattr(reach, name, follow_symlinks=False)
