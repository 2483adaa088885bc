"""``hotstart logs``: what a worker wrote."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import click

from hotstart.errors import HotstartError
from hotstart.reasons import INTERRUPTED
from hotstart.snapshot_agent.cli import lookup, output
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.cli.verbs import verb, whole

_BLOCK = 1 << 16
_POLL_S = 0.2
_ENDED_POLL_S = 1.0
_ENDED = frozenset({"exited"})


@verb(
    short_help="Show what a worker wrote to stdout and stderr.",
    examples=[
        ("the last 20 lines", "hotstart logs --tail 20 chat"),
        ("as it comes, until the sandbox ends", "hotstart logs -f chat"),
    ],
)
@click.option("--follow", "-f", is_flag=True, help="Go on printing until the sandbox ends.")
@click.option("--tail", "-n", type=whole(0, 10**9), metavar="N", help="Only the last N lines.  [default: all]")
@click.argument("name", shell_complete=lookup.complete_sandbox)
def logs(settings: Settings, follow: bool, tail: int | None, name: str) -> int:
    """Print what the worker in sandbox NAME wrote, as it wrote it."""
    from hotstart.snapshot_agent import api

    if follow and settings.json:
        raise click.UsageError(
            "--follow has no end that JSON could have; leave one of them out", click.get_current_context()
        )
    with lookup.suggesting(settings.home, name):
        path = api.log_path(settings.home, name)
    with path.open("rb") as file:
        if tail is not None:
            file.seek(tail_offset(file, tail))
        if settings.json:
            lines = file.read().decode("utf-8", "replace").splitlines()
            output.write_json({"name": name, "lines": lines})
            return 0
        try:
            _copy(file)
            if follow:
                _follow(file, lambda: _ended(settings.home, name))
        except KeyboardInterrupt:  # how one ends it: nothing was begun, nothing is undone
            output.leave_echoed_line()
            return INTERRUPTED.exit_code
    return 0


command = logs


def tail_offset(file: BinaryIO, lines: int) -> int:
    """Where the last ``lines`` lines of a file begin; an unfinished last line counts as one."""
    position = size = file.seek(0, os.SEEK_END)
    if lines == 0:
        return size
    wanted = lines
    while position > 0:
        start = max(0, position - _BLOCK)
        file.seek(start)
        block = file.read(position - start)
        if position == size and block.endswith(b"\n"):
            wanted += 1
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            wanted -= 1
            if wanted == 0:
                return start + at + 1
        position = start
    return 0


def _copy(file: BinaryIO) -> None:
    while block := file.read(_BLOCK):
        output.write_bytes(block)


def _follow(file: BinaryIO, ended: Callable[[], bool]) -> None:
    """Print what is added, until the sandbox ends; a log that was cut short is read from its start."""
    next_check = time.monotonic() + _ENDED_POLL_S
    while True:
        _copy(file)
        if time.monotonic() >= next_check:
            if ended():
                _copy(file)
                return
            next_check = time.monotonic() + _ENDED_POLL_S
        time.sleep(_POLL_S)
        if os.fstat(file.fileno()).st_size < file.tell():
            file.seek(0)


def _ended(home: Path, name: str) -> bool:
    from hotstart.snapshot_agent import api

    try:
        return not any(info.name == name and info.state not in _ENDED for info in api.sandboxes(home))
    except (HotstartError, OSError):
        return False
