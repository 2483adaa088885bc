"""The supervisor's reader of ``agent/root``: cheap to ask often, and without the imports of the full protocol.

``hooks.control.protocol`` costs 20 ms to import, just when a restored worker needs the processor for its first token;
tests/unit/hooks_supervisor holds both readers to the same answers.
"""

from __future__ import annotations

import os

LIMIT = 1 << 16
"""No adoption is larger than this many bytes."""


class Adoption:
    """See ``protocol.Adoption``."""

    __slots__ = ("cold_start_reason", "nonce", "root_pid")

    def __init__(self, nonce: str, root_pid: int, cold_start_reason: str) -> None:
        self.nonce = nonce
        self.root_pid = root_pid
        self.cold_start_reason = cold_start_reason


class AdoptionFile:
    """Remembers which file it has read: each order comes by rename, as a new file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen = (0, 0)

    def fresh(self) -> Adoption | None:
        """An order that was not there at the last call, or None; raises ValueError, OSError for an unreadable one."""
        try:
            status = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return None
        key = (status.st_ino, status.st_mtime_ns)
        if key == self._seen:
            return None
        self._seen = key
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return parse(os.read(fd, LIMIT + 1))
        finally:
            os.close(fd)


def parse(data: bytes) -> Adoption:
    """The order in ``data``; raises ValueError."""
    import json

    if len(data) > LIMIT:
        raise ValueError("the order is too large")
    raw = json.loads(data)
    if not isinstance(raw, dict) or set(raw) - {"nonce", "root_pid", "cold_start_reason"}:
        raise ValueError("not an order")
    nonce, pid, reason = raw.get("nonce"), raw.get("root_pid", 0), raw.get("cold_start_reason", "")
    if not isinstance(nonce, str) or not isinstance(pid, int) or not isinstance(reason, str):
        raise ValueError("not an order")
    return Adoption(nonce, pid, reason)
