"""Writes a scanned tree into an archive; on the critical path of a capture, because the worker is frozen meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hotstart.snapshot_agent.catalog.archive import format as form
from hotstart.snapshot_agent.catalog.archive import parallel
from hotstart.snapshot_agent.catalog.archive.beneath import open_file
from hotstart.snapshot_agent.catalog.archive.failure import TreeError, at
from hotstart.snapshot_agent.catalog.archive.format import BLOCK, Entry, FormatError
from hotstart.snapshot_agent.catalog.archive.scan import Scan, check_same, scan

_SMALL = 128 << 10
_BUFFERED = 1 << 20


def write_tree(root_fd: int, out: Path, skip: Iterable[bytes], *, overlay: bool) -> tuple[Scan, int]:
    """Archive the tree below ``root_fd`` as the new file ``out`` (mode 0600); returns what it holds and its bytes.

    Nothing is flushed to the disk: publishing a snapshot does that for all its files, after the worker runs again.
    On any failure (TreeError, OSError) no file is left.
    """
    found = scan(root_fd, skip, overlay=overlay)
    fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        return found, _Writer(root_fd, fd).write(found)
    except BaseException:
        out.unlink()
        raise
    finally:
        os.close(fd)


class _Writer:
    """Headers and small files go through one buffer in order; big files are noted and copied in parallel afterwards."""

    def __init__(self, root_fd: int, out_fd: int) -> None:
        self.root_fd = root_fd
        self.out_fd = out_fd
        self.buffer = bytearray()
        self.flushed = 0
        self.work: list[parallel.Work] = []
        self.work_bytes = 0

    def write(self, found: Scan) -> int:
        lists = found.tree.lists()
        if len(lists) > form.TREE_LIMIT:
            raise TreeError(b".", "has more whiteouts than can be carried")
        self.buffer += form.encode(form.tree_member(len(lists))) + lists
        self.pad()
        for entry in found.tree.entries:
            try:
                self.buffer += form.encode(entry)
            except FormatError as error:
                raise TreeError(entry.path, str(error)) from None
            if entry.segments:
                try:
                    self.data(entry, found.inodes[entry.path])
                except OSError as error:
                    raise at(entry.path, error) from None
            if len(self.buffer) >= _BUFFERED:
                self.flush()
        self.buffer += bytes(2 * BLOCK)
        self.flush()
        parallel.run(self.work, self.work_bytes)
        return self.flushed

    def data(self, entry: Entry, inode: tuple[int, int]) -> None:
        if entry.data_bytes > _SMALL:
            self.later(entry, inode)
        else:
            fd = open_file(self.root_fd, entry.path)
            try:
                check_same(fd, entry.path, inode)
                for offset, length in entry.segments:
                    piece = os.pread(fd, length, offset)
                    _check_length(entry.path, len(piece), length)
                    self.buffer += piece
            finally:
                os.close(fd)
        self.pad()

    def later(self, entry: Entry, inode: tuple[int, int]) -> None:
        """Leave room for the data, and note the work that fills it."""
        self.flush()
        for moves in parallel.portions(entry.segments, self.flushed):
            self.work.append(self.portion(entry.path, inode, moves))
        self.work_bytes += entry.data_bytes
        self.flushed += entry.data_bytes

    def portion(self, path: bytes, inode: tuple[int, int], moves: parallel.Moves) -> parallel.Work:
        def work(buffer: bytearray) -> None:
            fd = open_file(self.root_fd, path)
            try:
                check_same(fd, path, inode)
                for in_tree, in_archive, length in moves:
                    _check_length(path, parallel.copy(fd, in_tree, self.out_fd, in_archive, length, buffer), length)
            except OSError as error:
                raise at(path, error) from None
            finally:
                os.close(fd)

        return work

    def pad(self) -> None:
        self.buffer += bytes(-(self.flushed + len(self.buffer)) % BLOCK)

    def flush(self) -> None:
        view = memoryview(self.buffer)
        while view:
            written = os.pwrite(self.out_fd, view, self.flushed)
            self.flushed += written
            view = view[written:]
        self.buffer = bytearray()


def _check_length(path: bytes, found: int, expected: int) -> None:
    if found != expected:
        raise TreeError(path, "became shorter while it was being copied")
