"""How the archive says what went wrong, and how that becomes an error with a reason."""

from __future__ import annotations

import errno
import os

from hotstart.errors import HotstartError
from hotstart.reasons import DISK_FULL, Reason

TYPE_CHECKING = False  # as typing's: its import costs 9 ms, and helper processes load this module
if TYPE_CHECKING:
    from types import TracebackType

_FULL = (errno.ENOSPC, errno.EDQUOT)


class TreeError(Exception):
    """Something of a tree or of an archive cannot be handled; ``path`` is relative to the tree's root."""

    def __init__(self, path: bytes | str, why: str) -> None:
        super().__init__(f"{shown(path)}: {why}")


def shown(path: bytes | str) -> str:
    """A path from a worker as one printable line: at most 200 characters, nothing that a terminal would obey."""
    text = path if isinstance(path, str) else os.fsdecode(path)
    if len(text) > 200:
        text = f"{text[:80]}…{text[-119:]}"
    return text if text.isprintable() else ascii(text)[1:-1]


class told_as:
    """Context: TreeError and OSError of the body leave as HotstartError ``reason``, a full disk as ``disk-full``."""

    def __init__(self, reason: Reason, tried: str) -> None:
        self.reason = reason
        self.tried = tried

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, TreeError):
            raise HotstartError(self.reason, str(error), tried=self.tried) from None
        if isinstance(error, OSError):
            reason = DISK_FULL if error.errno in _FULL else self.reason
            detail = shown(str(error.strerror or error))
            if isinstance(error.filename, bytes | str):
                detail = f"{shown(error.filename)}: {_why(error)}"
            raise HotstartError(reason, detail, tried=self.tried) from error


def at(path: bytes, error: OSError) -> OSError:
    """The same error, naming ``path`` and nothing else (calls on descriptors name none, and some name too much)."""
    return OSError(error.errno, _why(error), os.fsdecode(path))


def _why(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
