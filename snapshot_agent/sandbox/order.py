"""What the maker of a sandbox orders from its shim, and what the shim answers.

The order travels by marshal: both ends are the same interpreter, and json would cost the shim 8 ms.
"""

from __future__ import annotations

import marshal

TYPE_CHECKING = False  # the real one comes with typing, which costs 5 ms
if TYPE_CHECKING:
    from typing import TypeAlias

    Step: TypeAlias = tuple[str | int | bool | bytes, ...]

UPPER, WORK, MERGED, CONTROL, LOG = "upper", "work", "merged", "control", "log"
"""Names in a sandbox's directory."""
LIVE, EXIT = "live.json", "exit.json"
"""What the shim writes there: who runs (once it does), and how it ended."""


class Order:
    """One sandbox to be made."""

    __slots__ = ("argv", "base", "boot", "cgroups", "directory", "name", "rootfs", "size", "steps", "unified")

    def __init__(
        self,
        *,
        name: str,
        directory: str,
        rootfs: str,
        cgroups: list[str],
        unified: str,
        base: int,
        size: int,
        steps: list[Step],
        argv: list[str],
        boot: str,
    ) -> None:
        self.name = name
        self.directory = directory
        self.rootfs = rootfs
        self.cgroups = cgroups
        """Directories to join in v1 hierarchies."""
        self.unified = unified
        """The directory to start in of the v2 hierarchy, or empty."""
        self.base = base
        self.size = size
        """The sandbox network: first address, number of addresses."""
        self.steps = steps
        """See ``plan``."""
        self.argv = argv
        """The supervisor's command line."""
        self.boot = boot
        """Id of this boot of the machine."""


def pack(order: Order) -> bytes:
    """For the shim's standard input."""
    return marshal.dumps({name: getattr(order, name) for name in Order.__slots__})


def unpack(data: bytes) -> Order:
    """Raises ValueError, EOFError or TypeError if the order is cut off: its maker has died."""
    return Order(**marshal.loads(data))  # noqa: S302 - from the maker, which is root


def failure(code: str, detail: str) -> bytes:
    """The shim's answer when the sandbox could not be made."""
    return f"error\0{code}\0{detail}\n".encode(errors="replace")


LIVES = b"lives\n"
"""The shim's answer when pid 1 exists and LIVE is written; the answer ends (EOF) when pid 1 executes the supervisor."""
