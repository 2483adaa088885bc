"""Blocks of the memory file: which of them hold data, and the digest of each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from hotstart.snapshot_agent.memory.format import BLOCK_BYTES


class Told(Protocol):
    """Receives the bytes done so far."""

    def __call__(self, done: int, total: int, /) -> None: ...


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
