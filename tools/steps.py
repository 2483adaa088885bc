"""Steps of a set-up: one line on the screen each, everything else in a log, a failure told in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.cache import cache_root

_EXCEPTION = re.compile(rb"[A-Z]\w*(Error|Exception): ")
_TELLING = re.compile(rb"(?i)^E: |\berror\b|unable to|could not|cannot |no space left|no such file|killed")
_READ = 4 << 20
_SHOWN = 200
"""Characters of a cause that fit on a line a person reads."""


class StepFailed(Exception):
    """A step ended badly; ``line`` is the whole story for a person."""

    def __init__(self, step: str, cause: str, remedy: str, log: Path | None = None) -> None:
        super().__init__(cause)
        self.step, self.cause, self.remedy, self.log = step, cause, remedy, log

    def line(self) -> str:
        """Step, cause and remedy in one line."""
        where = f" (all of it: {self.log})" if self.log else ""
        return f"{self.step} failed: {self.cause}; {self.remedy}{where}"


class CommandFailed(Exception):
    """A command of a step returned non-zero; the text is its most telling line."""


@dataclass(frozen=True)
class Log:
    """The log of one step; commands run through it leave all they say there."""

    path: Path

    def run(
        self, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        """Run a command without input; raises CommandFailed."""
        with self.path.open("ab") as out:
            out.write(f"$ {' '.join(map(str, command))}\n".encode())
            out.flush()
            began = out.tell()
            try:
                done = subprocess.run(
                    [str(part) for part in command],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(env or {})},
                    cwd=cwd,
                    check=False,
                )
            except OSError as error:
                raise CommandFailed(f"{command[0]}: {error.strerror}") from None
        if done.returncode:
            raise CommandFailed(telling_line(self.path, began) or f"{command[0]} ended with {done.returncode}")

    def note(self, text: str) -> None:
        """Write a line of our own."""
        with self.path.open("a") as out:
            out.write(text + "\n")


def telling_line(path: Path, offset: int = 0) -> str:
    """The line after ``offset`` that says most about a failure, shortened."""
    with path.open("rb") as log:
        log.seek(offset)
        return most_telling(log.read(_READ))


def most_telling(output: bytes) -> str:
    """The last exception, else the first line that speaks of an error, else the last line (pure)."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if not lines:
        return ""
    exceptions = [line for line in lines if _EXCEPTION.match(line)]
    errors = [line for line in lines if _TELLING.search(line)]
    line = exceptions[-1] if exceptions else errors[0] if errors else lines[-1]
    return " ".join(line.decode(errors="replace").split())[:_SHOWN]


@contextmanager
def step(title: str, *, remedy: str) -> Iterator[Log]:
    """Time the body and print its line; a failure becomes StepFailed with ``remedy``."""
    log = Log(_fresh_log(title))
    began = time.monotonic()
    try:
        yield log
    except (CommandFailed, OSError) as error:
        raise StepFailed(title, str(error), remedy, log.path) from None
    sys.stderr.write(f"  {title:<44} {time.monotonic() - began:6.1f} s\n")


def say(text: str) -> None:
    """One line of a result; what steps tell goes to standard error, since a result may be one JSON object."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _fresh_log(title: str) -> Path:
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    path = cache_root() / "logs" / f"{name}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    except OSError as error:
        raise StepFailed(title, str(error), "point HOTSTART_CACHE at a directory that you may write") from None
    return path
