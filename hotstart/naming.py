"""Names of sandboxes and snapshots: one rule for both, so that a copy may carry its snapshot's name (pure)."""

from __future__ import annotations

from hotstart.errors import HotstartError
from hotstart.reasons import BAD_NAME

LIMIT = 63
"""Characters; what a host name's label may hold, because a sandbox's name becomes its host name."""
_FIRST = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_REST = _FIRST | frozenset("._-")


def valid(name: str) -> bool:
    """True if ``name`` may name a sandbox or a snapshot.  Such a name is one harmless path component, never hidden."""
    return 0 < len(name) <= LIMIT and name[0] in _FIRST and all(letter in _REST for letter in name)


def check(name: str, of: str) -> str:
    """Return ``name``, or raise ``bad-name``; ``of`` says what it should name: ``snapshot``, ``sandbox``."""
    if valid(name):
        return name
    shown = name if len(name) <= LIMIT else f"{name[:LIMIT]}…"
    raise HotstartError(BAD_NAME, f"{shown!r} cannot name a {of}")
