"""Puts the tree of an archive below a root: deletes, creates, fills, and sets times last.

It runs as root on what a worker once wrote, among files that a worker once wrote: parents are opened through no symlink
and no mount, names are created and never opened for writing, and nothing is executed, read or followed.
"""

from __future__ import annotations

import errno
import os
import stat

from hotstart.snapshot_agent.catalog.archive import format as form
from hotstart.snapshot_agent.catalog.archive import parallel
from hotstart.snapshot_agent.catalog.archive.beneath import join, open_directory, split
from hotstart.snapshot_agent.catalog.archive.failure import TreeError, at
from hotstart.snapshot_agent.catalog.archive.format import Entry, Tree
from hotstart.snapshot_agent.catalog.archive.read import Placed, read

TYPE_CHECKING = False  # as typing's: imports that cost milliseconds, in a helper on a restore's critical path
if TYPE_CHECKING:
    from collections.abc import Callable

_SMALL = 128 << 10
_OPEN_FILES = 64
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def apply_tree(archive_fd: int, root_fd: int) -> Tree:
    """Make the tree below ``root_fd`` hold what the archive holds; other names that it has already stay.

    The calling process should have nothing else to do: umask and, for a symlink with extended attributes, the working
    directory are changed for a moment.  Raises TreeError and OSError; only an archive that was sound to its end changes
    anything.
    """
    tree, placed = read(archive_fd)
    umask = os.umask(0)
    applier = _Applier(archive_fd, root_fd)
    try:
        applier.apply(tree, placed)
    finally:
        os.umask(umask)
        applier.close()
    return tree


class _Applier:
    def __init__(self, archive_fd: int, root_fd: int) -> None:
        self.archive_fd = archive_fd
        self.root_fd = root_fd
        self.parent_path = b""
        self.parent_fd = -1
        self.buffer = bytearray(_SMALL)
        self.open_files: list[tuple[int, Placed]] = []

    def close(self) -> None:
        for fd, _placed in self.open_files:
            os.close(fd)
        if self.parent_fd >= 0:
            os.close(self.parent_fd)

    def apply(self, tree: Tree, placed: list[Placed]) -> None:
        directories = [one.entry for one in placed if one.entry.kind == form.DIRECTORY]
        opaque = frozenset(tree.opaque)
        for entry in directories:
            _named(entry.path, self.directory, entry.path, entry.path in opaque)
        for path in tree.whiteouts:
            _named(path, self.remove, path)
        for one in placed:
            if one.entry.kind != form.DIRECTORY:
                _named(one.entry.path, self.other, one)
        self.fill()
        for entry in reversed(directories):  # last, for creating a name in a directory changes its time
            _named(entry.path, self.directory_attributes, entry)

    def parent(self, path: bytes) -> tuple[int, bytes]:
        """Descriptor of the directory that holds ``path`` (valid until the next call), and its last component."""
        directory, name = split(path)
        if directory != self.parent_path:
            fd = open_directory(self.root_fd, directory)
            if self.parent_fd >= 0:
                os.close(self.parent_fd)
            self.parent_path, self.parent_fd = directory, fd
        return self.parent_fd, name

    def directory(self, path: bytes, opaque: bool) -> None:
        """Make sure that a directory is there; an opaque one is emptied."""
        if path == form.ROOT:
            return
        parent, name = self.parent(path)
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=parent)
                os.mkdir(name, 0o700, dir_fd=parent)
            elif opaque:
                self.empty(path)

    def remove(self, path: bytes) -> None:
        """Remove whatever has the name; a mount point stays and is an error (EBUSY)."""
        parent, name = self.parent(path)
        try:
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            self.empty(path)
            os.rmdir(name, dir_fd=self.parent(path)[0])

    def empty(self, path: bytes) -> None:
        """Remove everything below a directory.  A mount below it is never entered: opening it fails with EXDEV."""
        stack = [path]
        while stack:
            top = stack[-1]
            fd = open_directory(self.root_fd, top)
            try:
                below = []
                with os.scandir(fd) as listing:
                    for found in listing:
                        if found.is_dir(follow_symlinks=False):
                            below.append(join(top, os.fsencode(found.name)))
                        else:
                            os.unlink(found.name, dir_fd=fd)
            finally:
                os.close(fd)
            stack += below
            if not below:
                stack.pop()
                if top != path:
                    parent, name = self.parent(top)
                    os.rmdir(name, dir_fd=parent)

    def other(self, placed: Placed) -> None:
        """Create what is not a directory, in the place of whatever has the name."""
        try:
            self.create(placed)
        except FileExistsError:
            self.remove(placed.entry.path)
            self.create(placed)

    def create(self, placed: Placed) -> None:
        entry = placed.entry
        parent, name = self.parent(entry.path)
        if entry.kind == form.FILE:
            self.file(os.open(name, _CREATE, 0o600, dir_fd=parent), placed)
            return
        if entry.kind == form.LINK:
            directory, target = split(entry.link)
            source = open_directory(self.root_fd, directory)
            try:
                os.link(target, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(source)
            return
        if entry.kind == form.SYMLINK:
            os.symlink(entry.link, name, dir_fd=parent)
        elif entry.kind == form.FIFO:
            os.mkfifo(name, entry.mode, dir_fd=parent)
        else:
            kind = stat.S_IFCHR if entry.kind == form.CHARACTER else stat.S_IFBLK
            os.mknod(name, kind | entry.mode, os.makedev(*entry.device), dir_fd=parent)
        os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        if entry.xattrs:
            _special_xattrs(parent, name, entry.xattrs)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)

    def file(self, fd: int, placed: Placed) -> None:
        """Fill a new file at once if it is small; else leave it open for ``fill``."""
        entry = placed.entry
        self.open_files.append((fd, placed))
        if entry.sparse:
            os.ftruncate(fd, entry.size)
        if entry.data_bytes > _SMALL:
            if len(self.open_files) == _OPEN_FILES:
                self.fill()
            return
        self.open_files.pop()
        try:
            for moves in parallel.portions(entry.segments, placed.data):
                self.move(fd, moves, self.buffer)
            _attributes(fd, entry)
        finally:
            os.close(fd)

    def fill(self) -> None:
        """Fill the files that are open, in parallel."""
        work: list[parallel.Work] = []
        for fd, placed in self.open_files:
            for moves in parallel.portions(placed.entry.segments, placed.data):
                work.append(self.later(fd, placed.entry.path, moves))
        parallel.run(work, sum(placed.entry.data_bytes for _fd, placed in self.open_files))
        while self.open_files:
            fd, placed = self.open_files.pop()
            try:
                _named(placed.entry.path, _attributes, fd, placed.entry)
            finally:
                os.close(fd)

    def later(self, fd: int, path: bytes, moves: parallel.Moves) -> parallel.Work:
        return lambda buffer: _named(path, self.move, fd, moves, buffer)

    def move(self, fd: int, moves: parallel.Moves, buffer: bytearray) -> None:
        for in_tree, in_archive, length in moves:
            if parallel.copy(self.archive_fd, in_archive, fd, in_tree, length, buffer) != length:
                raise TreeError("archive", "was cut off while it was read")

    def directory_attributes(self, entry: Entry) -> None:
        fd = open_directory(self.root_fd, entry.path)
        try:
            _attributes(fd, entry)
        finally:
            os.close(fd)


def _attributes(fd: int, entry: Entry) -> None:
    """Owner first, because changing it clears set-uid bits and capabilities; time last.  What is right already is
    left alone: a read-only root stays untouched if nothing differs."""
    status = os.fstat(fd)
    if (status.st_uid, status.st_gid) != (entry.uid, entry.gid):
        os.fchown(fd, entry.uid, entry.gid)
    if stat.S_IMODE(status.st_mode) != entry.mode or entry.mode & (stat.S_ISUID | stat.S_ISGID):
        os.fchmod(fd, entry.mode)
    _xattrs(fd, entry.xattrs)
    if status.st_mtime_ns != entry.mtime_ns:
        os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))


def _xattrs(fd: int, wanted: dict[bytes, bytes]) -> None:
    """Exactly the wanted attributes, of those that travel: others came from a lower layer or a default ACL."""
    try:
        present = os.listxattr(fd)
    except OSError as error:
        if error.errno != errno.ENOTSUP or wanted:
            raise
        return
    for text in present:
        name = os.fsencode(text)
        if form.carried(name) and name not in wanted:
            os.removexattr(fd, text)
    for name, value in wanted.items():
        os.setxattr(fd, name, value)


def _special_xattrs(parent: int, name: bytes, wanted: dict[bytes, bytes]) -> None:
    """Extended attributes of what cannot be opened.  The kernel has no setxattrat before 6.13, and a sandbox may hide
    /proc/self/fd: the one way left is a relative path from the working directory."""
    before = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fchdir(parent)
        for xattr, value in wanted.items():
            os.setxattr(name, xattr, value, follow_symlinks=False)
    finally:
        os.fchdir(before)
        os.close(before)


def _named(path: bytes, step: Callable[..., None], *arguments: object) -> None:
    """Call ``step``; its OSError leaves with the path in it."""
    try:
        step(*arguments)
    except OSError as error:
        raise at(path, error) from None
