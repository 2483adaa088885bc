"""Phase timings of one operation, with the rest that no phase accounts for.

Phases may overlap (work runs in parallel); the unaccounted rest is the wall time that no phase covers, so it can never
be hidden by overlapping phases.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Phase:
    """One named span; ``start`` and ``end`` in seconds after the operation's start."""

    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Length of the span."""
        return self.end - self.start


@dataclass
class Phases:
    """Collects spans; safe to use from several threads."""

    began: float = field(default_factory=time.monotonic)
    spans: list[Phase] = field(default_factory=list)
    ended: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time the body under ``name``; a failing body is timed too."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(name, start, time.monotonic())

    def add(self, name: str, start: float, end: float) -> None:
        """Record a span given as monotonic times (from this machine, any process)."""
        with self._lock:
            self.spans.append(Phase(name, start - self.began, end - self.began))

    def finish(self) -> None:
        """Stop the wall clock; later calls change nothing."""
        if self.ended is None:
            self.ended = time.monotonic()

    @property
    def total(self) -> float:
        """Wall seconds of the operation (so far)."""
        return (self.ended if self.ended is not None else time.monotonic()) - self.began

    def unaccounted(self) -> float:
        """Wall seconds that no phase covers."""
        return unaccounted(self.spans, self.total)

    def to_json(self) -> dict[str, object]:
        """``{"total_s", "unaccounted_s", "spans": [{"name", "start_s", "end_s"}]}``."""
        with self._lock:
            spans = sorted(self.spans, key=lambda p: (p.start, p.end))
        total = self.total
        return {
            "total_s": round(total, 6),
            "unaccounted_s": round(unaccounted(spans, total), 6),
            "spans": [{"name": p.name, "start_s": round(p.start, 6), "end_s": round(p.end, 6)} for p in spans],
        }


def unaccounted(spans: list[Phase], total: float) -> float:
    """Length of ``[0, total]`` outside the union of ``spans``, in seconds (pure)."""
    covered, reached = 0.0, 0.0
    for phase in sorted(spans, key=lambda p: p.start):
        start, end = max(phase.start, reached), min(phase.end, total)
        if end > start:
            covered += end - start
            reached = end
    return max(0.0, total - covered)
