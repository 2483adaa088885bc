"""Deadlines on the monotonic clock: every wait in Hotstart takes one."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hotstart.errors import HotstartError
from hotstart.reasons import DEADLINE


@dataclass(frozen=True)
class Deadline:
    """A point on the monotonic clock, in seconds, and what is being waited for."""

    at: float
    waiting_for: str

    @classmethod
    def after(cls, seconds: float, waiting_for: str) -> Deadline:
        """A deadline ``seconds`` from now."""
        return cls(time.monotonic() + seconds, waiting_for)

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    def expired(self) -> bool:
        """True once the point has passed."""
        return time.monotonic() >= self.at

    def check(self) -> None:
        """Raise ``deadline`` if the point has passed."""
        if self.expired():
            raise HotstartError(DEADLINE, f"gave up waiting for {self.waiting_for}")

    def sooner(self, seconds: float) -> float:
        """The smaller of ``seconds`` and what is left: the time one poll may take."""
        return min(seconds, self.remaining())
