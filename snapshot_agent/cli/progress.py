"""Progress of a long operation: a bar on a terminal, a line at each new phase elsewhere; always on stderr.

Most operations end before a bar is worth looking at, and drawing costs them time: it appears only after a while.
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
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

PATIENCE_S = 0.4
"""An operation that takes longer than this is worth a bar."""

Progress = Callable[[str, float], None]


@contextmanager
def shown(settings: Settings) -> Iterator[Progress]:
    """A progress callback (from any thread) whose display ends with the block, however that ends."""
    if not is_terminal(sys.stderr):
        yield _Lines()
        return
    bar = _Bar(settings)
    try:
        yield bar
    finally:
        bar.close()


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


class _Bar:
    """What is being done just now, and how far it is; drawn by rich once the operation has taken a while."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._now = ("", 0.0)
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._closed = False
        self._timer = threading.Timer(PATIENCE_S, self._open)
        self._timer.daemon = True
        self._timer.start()

    def __call__(self, phase: str, fraction: float) -> None:
        with self._lock:
            self._now = (phase, min(1.0, max(0.0, fraction)))
            self._show()

    def _open(self) -> None:
        bar = _rich_bar(self._settings)
        with self._lock:
            if self._closed:
                return
            self._bar = bar
            self._task = bar.add_task("", total=None)
            bar.start()
            self._show()

    def _show(self) -> None:
        if self._bar is None or self._task is None:
            return
        phase, fraction = self._now
        # Many phases say only that they begin: the bar pulses then, instead of standing at nothing.
        known = 1.0 if fraction > 0 else None
        self._bar.update(self._task, description=printable(phase), completed=fraction, total=known)

    def close(self) -> None:
        """Take the bar away."""
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.stop()
                self._bar = None


def _rich_bar(settings: Settings) -> Bar:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f} %"),
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
