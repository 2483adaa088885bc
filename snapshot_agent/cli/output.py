"""What is printed, and where: results on stdout (a table or one JSON value), words about them on stderr."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TextIO

from hotstart.errors import HotstartError
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.units import printable


class Reported(Exception):
    """A failure whose result, with its ``error`` member, is on stdout already; its line on stderr is not."""

    def __init__(self, error: HotstartError) -> None:
        super().__init__(str(error))
        self.error = error


class Fit(Enum):
    """What becomes of a column when the terminal is too narrow."""

    WHOLE = "whole"
    CUT = "cut"
    WRAP = "wrap"


@dataclass(frozen=True)
class Column:
    """A table's column."""

    title: str
    fit: Fit = Fit.WHOLE
    right: bool = False


@dataclass(frozen=True)
class Styled:
    """A cell with a meaning: good, bad, warn, dim, strong."""

    text: str
    style: str


Cell = str | Styled

_GAP = 2
_NARROWEST = 8

_RICH_STYLES = {"good": "green", "bad": "red", "warn": "yellow", "dim": "dim", "strong": "bold"}


def prepare_streams() -> None:
    """Text that the locale cannot show is escaped instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def write(text: str) -> None:
    """Print on stdout, now; raises OSError (nobody reads any more, a full disk behind a redirection)."""
    if sys.stdout is not None:
        sys.stdout.write(text)
        sys.stdout.flush()


def write_bytes(data: bytes) -> None:
    """Print foreign bytes on stdout as they are; raises as :func:`write`."""
    if sys.stdout is not None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def stdout_is_gone() -> bool:
    """True if stdout is a pipe or socket that nobody reads any more."""
    try:
        poller = select.poll()
        poller.register(1, 0)  # errors are always reported
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poller.poll(0))
    except OSError:
        return False


def abandon_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter's exit does not stumble over it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def settle_stdout() -> None:
    """Write what is still buffered, or give it up: the interpreter would end with a traceback and a code of its own."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError:
            abandon_stdout()


def write_json(value: Any) -> None:
    """The one JSON value of a call."""
    import json

    write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def say(text: str) -> None:
    """Words for people, on stderr; nobody listening is no error."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(printable(text) + "\n")
        sys.stderr.flush()
    except OSError:
        pass


def leave_echoed_line() -> None:
    """Begin a new line on a terminal, which has echoed ^C into the current one."""
    if is_terminal(sys.stderr):
        sys.stderr.write("\n")
        sys.stderr.flush()


def is_terminal(stream: TextIO | None) -> bool:
    """True for a terminal that can move its cursor."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def speaks_unicode(stream: TextIO | None) -> bool:
    """True if bars and check marks can be shown."""
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"


def width() -> int:
    """Columns of the terminal."""
    import shutil

    return max(40, shutil.get_terminal_size((100, 24)).columns)


def table(settings: Settings, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table: fitted to a terminal and colored there, whole and plain into a pipe or file."""
    if is_terminal(sys.stdout):
        write(fitted(columns, rows, width(), color=settings.color))
    else:
        write(plain(columns, rows))


def plain(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> str:
    """Aligned columns, nothing cut (pure)."""
    texts = [[column.title for column in columns], *([_text(cell) for cell in row] for row in rows)]
    if not any(texts[0]):
        texts = texts[1:]
    widths = [max((len(line[number]) for line in texts), default=0) for number in range(len(columns))]
    lines = []
    for line in texts:
        cells = (
            text.rjust(wide) if column.right else text.ljust(wide)
            for column, text, wide in zip(columns, line, widths, strict=True)
        )
        lines.append((" " * _GAP).join(cells).rstrip())
    return "".join(line + "\n" for line in lines)


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], wide: int, *, color: bool) -> str:
    """The table for a terminal of ``wide`` columns: columns that may are cut or wrapped until it fits."""
    import io

    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    natural = [
        max([cell_len(column.title), *(cell_len(_text(row[number])) for row in rows)])
        for number, column in enumerate(columns)
    ]
    widths = shrink(columns, natural, wide)
    drawn = Table(
        box=None, pad_edge=False, padding=(0, 0), header_style="bold", show_header=any(c.title for c in columns)
    )
    for number, (column, room) in enumerate(zip(columns, widths, strict=True)):
        last = number == len(columns) - 1
        drawn.add_column(
            Text(column.title, no_wrap=True, overflow="ellipsis"),
            justify="right" if column.right else "left",
            width=room,
        )
        if not last:
            drawn.add_column("", width=_GAP)
    for row in rows:
        cells = []
        for column, cell in zip(columns, row, strict=True):
            style = _RICH_STYLES.get(cell.style, "") if isinstance(cell, Styled) else ""
            wraps = column.fit is Fit.WRAP
            cells += [Text(_text(cell), style, no_wrap=not wraps, overflow="fold" if wraps else "ellipsis"), Text("")]
        drawn.add_row(*cells[:-1])
    sink = io.StringIO()
    console = Console(
        file=sink,
        width=sum(widths) + _GAP * len(widths),
        force_terminal=color,
        color_system="standard" if color else None,
    )
    console.print(drawn, no_wrap=True, crop=False)
    return "".join(line.rstrip() + "\n" for line in sink.getvalue().splitlines())


def shrink(columns: Sequence[Column], natural: Sequence[int], wide: int) -> list[int]:
    """Widths that fit into ``wide``: the widest column that may shrink gives, down to a minimum (pure)."""
    widths = list(natural)
    minimum = [
        natural[number] if column.fit is Fit.WHOLE else min(natural[number], _NARROWEST)
        for number, column in enumerate(columns)
    ]
    excess = sum(widths) + _GAP * (len(widths) - 1) - wide
    while excess > 0:
        giving = [number for number in range(len(widths)) if widths[number] > minimum[number]]
        if not giving:
            break
        widest = max(giving, key=lambda number: widths[number])
        widths[widest] -= 1
        excess -= 1
    return widths


def _text(cell: Cell) -> str:
    return printable(cell.text if isinstance(cell, Styled) else cell)


def paint(settings: Settings, text: str, style: str) -> str:
    """A styled word for a terminal; the word itself elsewhere."""
    if not settings.color or not is_terminal(sys.stdout):
        return text
    codes = {"good": "32", "bad": "31", "warn": "33", "dim": "2", "strong": "1"}
    return f"\x1b[{codes[style]}m{text}\x1b[0m"
