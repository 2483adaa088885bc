"""Phases as bars of text for a terminal: where in the operation each one lay (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hotstart.snapshot_agent.timeline import gaps, merge

UNACCOUNTED = "unaccounted"


@dataclass(frozen=True)
class Row:
    """One phase: its name, its bar (``width`` cells) and the seconds it covers."""

    name: str
    bar: str
    seconds: float


def waterfall(phases: Mapping[str, Any], width: int, *, unicode: bool = True) -> list[Row]:
    """One row a phase name in order of appearance, and the unaccounted rest last.

    ``phases`` is what ``hotstart.phases.Phases.to_json`` gives.  Spans of one name share a row; overlaps count once.
    """
    total = float(phases["total_s"])
    spans: dict[str, list[tuple[float, float]]] = {}
    for span in sorted(phases["spans"], key=lambda s: (s["start_s"], -s["end_s"])):
        spans.setdefault(str(span["name"]), []).append((float(span["start_s"]), float(span["end_s"])))
    rows = []
    for name, pieces in spans.items():
        merged = merge(pieces)
        rows.append(Row(name, _bar(merged, total, width, "█" if unicode else "#", unicode), _covered(merged)))
    rest = gaps((piece for pieces in spans.values() for piece in pieces), total)
    rows.append(
        Row(
            UNACCOUNTED,
            _bar(rest, total, width, "░" if unicode else ".", False),
            float(phases["unaccounted_s"]),
        )
    )
    return rows


def _covered(pieces: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in pieces)


_EIGHTHS = " ▏▎▍▌▋▊▉"


def _bar(pieces: Iterable[tuple[float, float]], total: float, width: int, full: str, fine: bool) -> str:
    """Cells filled where an interval lies; with ``fine`` the last cell of an interval is drawn in eighths."""
    cells = [" "] * width
    if total <= 0:
        return "".join(cells)
    for start, end in pieces:
        left = min(max(start / total, 0.0), 1.0) * width
        right = min(max(end / total, 0.0), 1.0) * width
        first = min(int(left), width - 1)
        if not fine:
            for cell in range(first, max(first + 1, round(right))):
                cells[min(cell, width - 1)] = full
            continue
        if right - left < 1:
            cells[first] = _EIGHTHS[max(1, int((right - left) * 8))]
            continue
        last = int(right)
        for cell in range(first, last):
            cells[cell] = full
        if last < width and cells[last] == " ":
            cells[last] = _EIGHTHS[int((right - last) * 8)]
    return "".join(cells)
