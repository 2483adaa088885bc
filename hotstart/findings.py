"""One finding of an audit or a preflight: a reason code, what was found, what was needed, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotstart.reasons import Reason


@dataclass(frozen=True)
class Finding:
    """``fatal`` findings forbid the operation; others are told and lived with."""

    reason: Reason
    subject: str
    """What it is about: ``pid 101 (python)``, ``/dev/shm``, ``kernel``."""
    found: str
    needed: str
    what_to_do: str = ""
    fatal: bool = True

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "reason": self.reason.code,
            "subject": self.subject,
            "found": self.found,
            "needed": self.needed,
            "what_to_do": self.what_to_do or self.reason.remedy,
            "fatal": self.fatal,
        }
