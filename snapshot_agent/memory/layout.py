"""Where each range of memory has its place in the memory file (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HUGE = 2 << 20
"""Offsets are congruent to addresses modulo this, so that 2 MiB folios can be mapped by one entry."""
WIDE_GAP = 1 << 30
"""Hole between two ranges: growth by mremap (which the filter refuses as well) runs into zeros, not into data."""
FILE_LIMIT = 8 << 40
"""ext4 with 4 KiB blocks holds files of 16 TiB; half of that is where gaps begin to shrink."""


@dataclass(frozen=True)
class Span:
    """A range of one process's address space, in bytes."""

    pid: int
    start: int
    end: int


def place(spans: Sequence[Span], *, limit: int = FILE_LIMIT) -> tuple[list[int], int]:
    """Offsets of the spans in the memory file, in order, and the file's size (bytes, a multiple of 4 KiB).

    No two spans share a 2 MiB block.  Raises ValueError when they cannot fit below ``limit`` even with small gaps.
    """
    content = sum(s.end - s.start for s in spans)
    room = limit - content - 2 * HUGE * (len(spans) + 1)
    if room < 0:
        raise ValueError(f"{len(spans)} ranges of {content} bytes do not fit in a file of {limit} bytes")
    gap = min(WIDE_GAP, room // max(1, len(spans)) // HUGE * HUGE)
    offsets: list[int] = []
    end = 0
    for span in spans:
        base = -(-(end + gap) // HUGE) * HUGE
        offset = base + span.start % HUGE
        offsets.append(offset)
        end = -(-(offset + span.end - span.start) // HUGE) * HUGE
    return offsets, end
