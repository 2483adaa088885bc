"""The zoo's protocol for programs in Python (see zoo.h); imported by the program that lies beside it."""

from __future__ import annotations

import os
import sys
import time

_differences = 0


def say(line: str) -> None:
    """One line at once, so that lines of several processes do not mix."""
    os.write(1, (line.replace("\n", "\\n") + "\n").encode(errors="backslashreplace"))


def bad(what: str) -> None:
    """Name a difference."""
    global _differences
    _differences += 1
    say(f"BAD {what}")


def ready() -> None:
    """Say so, and wait for ``go`` in the working directory."""
    say("ready")
    while not os.path.exists("go"):
        time.sleep(0.02)


def done() -> None:
    """Say OK, if it is, and end."""
    if not _differences:
        say("OK")
    sys.exit(1 if _differences else 0)


def give_up(why: str) -> None:
    """The state cannot be prepared."""
    say(f"BAD preparing: {why}")
    sys.exit(2)
