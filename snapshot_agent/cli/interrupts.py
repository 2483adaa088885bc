"""SIGINT, SIGTERM and SIGHUP: the first one ends an operation, later ones do not stop its being undone.

An operation that is done is not undone any more: from there on, signals change nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hotstart.errors import HotstartError
from hotstart.reasons import INTERRUPTED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_UNDOING = b"hotstart: still undoing\n"


class _State:
    interrupted = False
    done = False


_state = _State()


def done() -> None:
    """Say that the operation of this call is done: what is left is to tell of it."""
    _state.done = True


@contextmanager
def undone(what: str, left: str) -> Iterator[None]:
    """Around a call that undoes itself when it is interrupted: tell so, and in ``left`` what there is now."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        by = f" by {interrupt}" if interrupt.args else ""
        raise HotstartError(INTERRUPTED, f"{what} was stopped{by} and undone, {left}") from None


@contextmanager
def raised() -> Iterator[None]:
    """Within the block the first signal raises KeyboardInterrupt, named after the signal.

    A signal that the caller ignores (nohup) stays ignored.  Outside the main thread nothing is changed.
    """
    _state.interrupted = _state.done = False
    before = {}
    try:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, _handle)
    except ValueError:  # not the main thread
        before = {}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _handle(number: int, _frame: FrameType | None) -> None:
    if _state.done:
        return
    if _state.interrupted:
        os.write(2, _UNDOING)
        return
    _state.interrupted = True
    raise KeyboardInterrupt(signal.Signals(number).name)
