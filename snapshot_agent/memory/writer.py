"""Writes the memory file: pages go to their offsets, pages of zeros become holes; then every block is digested."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hotstart.snapshot_agent.memory.format import BLOCK_BYTES

PAGE = 4096
_CHUNK = 4 << 20


class Told(Protocol):
    """Receives the bytes done so far."""

    def __call__(self, done: int, total: int, /) -> None: ...


@dataclass(frozen=True)
class Run:
    """Consecutive pages: ``length`` bytes at ``source`` of a pages file belong at ``target`` of the memory file."""

    source: int
    target: int
    length: int


@dataclass(frozen=True)
class Written:
    """Bytes that hold data, and bytes that were zero and are holes."""

    data_bytes: int
    zero_bytes: int


def nonzero_runs(chunk: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> list[tuple[int, int]]:
    """The runs ``(first page, page after the last)`` of ``chunk`` (whole pages) that are not all zero (pure)."""
    flags = chunk.view(np.uint64).reshape(-1, PAGE // 8).any(axis=1)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def copy_runs(source_fd: int, memory_fd: int, runs: Sequence[Run], told: Told | None = None) -> Written:
    """Copy runs of pages from a pages file into the memory file, eliding zeros.  Raises OSError."""
    buffer = np.empty(_CHUNK, dtype=np.uint8)
    data = zero = done = 0
    total = sum(r.length for r in runs)
    for run in runs:
        at = 0
        while at < run.length:
            size = min(_CHUNK, run.length - at)
            view = buffer[:size]
            _read_exactly(source_fd, view, run.source + at)
            for first, after in nonzero_runs(view):
                _write_exactly(memory_fd, view[first * PAGE : after * PAGE], run.target + at + first * PAGE)
                data += (after - first) * PAGE
            at += size
            done += size
            if told is not None:
                told(done, total)
        zero += run.length
    return Written(data, zero - data)


def data_blocks(fd: int, size: int) -> Iterator[int]:
    """Indices of the blocks of a sparse file that hold data, in order."""
    last = -1
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            return  # ENXIO: no data after ``at``
        end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        for index in range(max(last + 1, start // BLOCK_BYTES), -(-end // BLOCK_BYTES)):
            yield index
            last = index
        at = end


def digest_blocks(
    fd: int, size: int, indices: Sequence[int], *, threads: int = 2, told: Told | None = None
) -> dict[int, bytes]:
    """SHA-256 of each block, computed by several threads (hashing releases the GIL)."""
    groups = [indices[i : i + 64] for i in range(0, len(indices), 64)]

    def digest(group: Sequence[int]) -> list[bytes]:
        return [
            hashlib.sha256(os.pread(fd, min(BLOCK_BYTES, size - i * BLOCK_BYTES), i * BLOCK_BYTES)).digest()
            for i in group
        ]

    found: dict[int, bytes] = {}
    with ThreadPoolExecutor(threads) as pool:
        for group, digests in zip(groups, pool.map(digest, groups), strict=True):
            found.update(zip(group, digests, strict=True))
            if told is not None:
                told(len(found) * BLOCK_BYTES, len(indices) * BLOCK_BYTES)
    return found


def _read_exactly(fd: int, view: np.ndarray[tuple[int], np.dtype[np.uint8]], offset: int) -> None:
    got = 0
    while got < view.nbytes:
        n = os.preadv(fd, [view.data[got:]], offset + got)
        if n == 0:
            raise OSError("the pages file is shorter than its pagemap says")
        got += n


def _write_exactly(fd: int, view: np.ndarray[tuple[int], np.dtype[np.uint8]], offset: int) -> None:
    put = 0
    while put < view.nbytes:
        put += os.pwrite(fd, view.data[put:], offset + put)
