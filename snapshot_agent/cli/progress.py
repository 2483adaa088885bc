"""Progress of a long operation: bars on a terminal, a line at each new phase elsewhere; always on stderr.

Most operations end before a bar is worth looking at, and drawing costs them time: bars appear only after a while.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hotstart.snapshot_agent.cli.output import is_terminal, say
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.units import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

PATIENCE_S = 0.4
"""An operation that takes longer than this is worth bars."""

Progress = Callable[[str, float], None]


@contextmanager
def shown(settings: Settings) -> Iterator[Progress]:
    """A progress callback (from any thread) whose display ends with the block, however that ends."""
    if not is_terminal(sys.stderr):
        yield _Lines()
        return
    bars = _Bars(settings)
    try:
        yield bars
    finally:
        bars.close()


class _Lines:
    """Each phase once, when it begins."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, phase: str, _fraction: float) -> None:
        with self._lock:
            if phase in self._seen:
                return
            self._seen.add(phase)
        say(f"hotstart: {phase}")


class _Bars:
    """One bar a phase, drawn by rich once the operation has taken a while."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._fractions: dict[str, float] = {}
        self._bars: Bars | None = None
        self._tasks: dict[str, Any] = {}
        self._closed = False
        self._timer = threading.Timer(PATIENCE_S, self._open)
        self._timer.daemon = True
        self._timer.start()

    def __call__(self, phase: str, fraction: float) -> None:
        with self._lock:
            self._fractions[phase] = min(1.0, max(0.0, fraction))
            if self._bars is not None:
                self._show(phase)

    def _open(self) -> None:
        bars = _rich_bars(self._settings)
        with self._lock:
            if self._closed:
                return
            self._bars = bars
            bars.start()
            for phase in self._fractions:
                self._show(phase)

    def _show(self, phase: str) -> None:
        assert self._bars is not None
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(printable(phase), total=1.0)
        self._bars.update(self._tasks[phase], completed=self._fractions[phase])

    def close(self) -> None:
        """Take the bars away."""
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._bars is not None:
                self._bars.stop()
                self._bars = None


def _rich_bars(settings: Settings) -> Bars:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=_console(settings),
        transient=True,
    )


def _console(settings: Settings) -> Any:
    from rich.console import Console

    return Console(stderr=True, no_color=not settings.color, highlight=False, markup=False)


@contextmanager
def waiting(settings: Settings, what: str, last_words: Callable[[], str]) -> Iterator[None]:
    """Show that something is being waited for, how long already, and the last line of its log."""
    if not is_terminal(sys.stderr):
        say(f"hotstart: waiting for {what}")
        yield
        return
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    began = time.monotonic()
    spinner = Spinner("dots")

    class View:
        def __rich__(self) -> Table:
            spinner.update(text=Text(f"waiting for {what}  {time.monotonic() - began:.0f} s"))
            view = Table.grid()
            view.add_row(spinner)
            view.add_row(Text("  " + printable(last_words()), style="dim", no_wrap=True, overflow="ellipsis"))
            return view

    with Live(View(), console=_console(settings), refresh_per_second=8, transient=True):
        yield
