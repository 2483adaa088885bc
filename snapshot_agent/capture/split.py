"""Where each page of a dump goes (pure): to the memory file, or kept in CRIU's own images."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hotstart.errors import HotstartError
from hotstart.reasons import IMAGE_UNEXPECTED
from hotstart.snapshot_agent.capture.skeleton import kept_entry
from hotstart.snapshot_agent.criu import images_pb2 as pb
from hotstart.snapshot_agent.criu.imagefile import pages_of
from hotstart.snapshot_agent.memory.writer import PAGE, Run

_PRESENT = 4


@dataclass(frozen=True)
class Piece:
    """Consecutive pages of one range: at ``address``, and at ``source`` in the pages file (-1: no content there)."""

    index: int
    """Which range, by position."""
    address: int
    pages: int
    source: int
    entry: pb.PagemapEntry


@dataclass
class Split:
    """The outcome for one pages file."""

    runs: list[Run] = field(default_factory=list)
    """To the memory file."""
    kept: list[pb.PagemapEntry] = field(default_factory=list)
    """The new pagemap."""
    kept_runs: list[tuple[int, int]] = field(default_factory=list)
    """(offset, length) in the old pages file of what the new one holds, in order."""


def pieces(entries: Iterable[pb.PagemapEntry], ranges: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    """Cut pagemap entries at the borders of ``ranges`` (sorted, disjoint ``(start, end)`` in bytes).

    Raises ``image-unexpected`` for a page outside every range.
    """
    starts = [start for start, _end in ranges]
    source = 0
    for entry in entries:
        left, address = pages_of(entry), entry.vaddr
        present = not entry.flags or bool(entry.flags & _PRESENT)
        while left:
            index = bisect.bisect_right(starts, address) - 1
            if index < 0 or address >= ranges[index][1]:
                raise HotstartError(
                    IMAGE_UNEXPECTED, f"CRIU's pagemap names a page at {address:#x} outside every range"
                )
            pages = min(left, (ranges[index][1] - address) // PAGE)
            yield Piece(index, address, pages, source if present else -1, entry)
            if present:
                source += pages * PAGE
            address += pages * PAGE
            left -= pages


def count_pages(entries: Iterable[pb.PagemapEntry], ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Pages with content per range."""
    counts = [0] * len(ranges)
    for piece in pieces(entries, ranges):
        if piece.source >= 0:
            counts[piece.index] += piece.pages
    return counts


def split(entries: Iterable[pb.PagemapEntry], ranges: Sequence[tuple[int, int]], places: Mapping[int, int]) -> Split:
    """Send the pages of the ranges in ``places`` (index → offset in the memory file) there; keep the others."""
    result = Split()
    for piece in pieces(entries, ranges):
        place = places.get(piece.index)
        if place is None:
            result.kept.append(kept_entry(piece.entry, piece.address, piece.pages))
            if piece.source >= 0:
                result.kept_runs.append((piece.source, piece.pages * PAGE))
        elif piece.source >= 0:
            target = place + piece.address - ranges[piece.index][0]
            _append(result.runs, Run(piece.source, target, piece.pages * PAGE))
    return result


def _append(runs: list[Run], run: Run) -> None:
    """Append ``run``, joined to the last one where both sides continue."""
    if runs:
        last = runs[-1]
        if last.source + last.length == run.source and last.target + last.length == run.target:
            runs[-1] = Run(last.source, last.target, last.length + run.length)
            return
    runs.append(run)
