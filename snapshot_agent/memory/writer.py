"""Writes the memory file: pages go to their offsets, pages of zeros become holes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotstart.snapshot_agent.memory.blocks import Told

PAGE = 4096
_CHUNK = 4 << 20


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
