"""The one error that Hotstart raises on purpose: a reason code, what was tried, and what to do next."""

from __future__ import annotations

from hotstart.reasons import Reason


class HotstartError(Exception):
    """A failure with a stable reason.

    ``detail`` says what was found in this case, ``tried`` what Hotstart was doing, ``next_step`` overrides the reason's
    general remedy when the case allows a better one.
    """

    def __init__(self, reason: Reason, detail: str, *, tried: str = "", next_step: str = "") -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.tried = tried
        self.next_step = next_step or reason.remedy

    def __str__(self) -> str:
        return self.line()

    def line(self) -> str:
        """The failure in one line, for people: code, case, attempt, remedy."""
        parts = [f"{self.reason.code}: {self.detail}"]
        if self.tried:
            parts.append(f"while {self.tried}")
        text = ", ".join(parts)
        if self.next_step:
            text += f"; {self.next_step}"
        return " ".join(text.split())

    def to_json(self) -> dict[str, object]:
        """The failure for machines."""
        return {
            "reason": self.reason.code,
            "detail": self.detail,
            "tried": self.tried,
            "next_step": self.next_step,
            "exit_code": self.reason.exit_code,
        }
