"""Signals that supervisor and launcher pass on to the worker's command."""

from __future__ import annotations

import signal

FORWARDED = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGTERM,
        signal.SIGCONT,
        signal.SIGWINCH,
    }
)
