"""How sizes, durations, ages and foreign text are written for people: the one place that knows (pure)."""

from __future__ import annotations

from datetime import UTC, datetime

NOTHING = "-"
"""Stands in a table for a value that does not exist."""


def size(count: int | float) -> str:
    """Bytes with a binary unit and three digits: ``0 B``, ``512 B``, ``68.2 MiB``, ``1.50 GiB``."""
    value = float(count)
    if abs(value) < 1024:
        return f"{int(value)} B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if abs(value) < 999.5 or unit == "PiB":
            break
    return f"{_three_digits(value)} {unit}"


def duration(seconds: float) -> str:
    """A length of time: ``0.4 ms``, ``31 ms``, ``312 ms``, ``2.34 s``, ``31.2 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if 0 < seconds < 0.0095:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 119.5:
        return f"{_three_digits(seconds)} s"
    whole = round(seconds)
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def _three_digits(value: float) -> str:
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def age(created: str, now: datetime | None = None) -> str:
    """How long ago an RFC 3339 time was, in its largest unit: ``12s``, ``3m``, ``5h``, ``2d``; ``?`` if unreadable."""
    try:
        then = datetime.fromisoformat(created)
    except ValueError:
        return "?"
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    elapsed = max(0, int(((now or datetime.now(UTC)) - then).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if elapsed >= length * (2 if unit != "d" else 1):
            return f"{elapsed // length}{unit}"
    return f"{elapsed}s"


def share(part: float, whole: float) -> str:
    """A part of a whole in percent: ``7 %``."""
    return f"{100 * part / whole:.0f} %" if whole > 0 else NOTHING


def count(number: int, noun: str) -> str:
    """``1 copy``, ``3 copies``, ``2 files``."""
    if number == 1:
        return f"1 {noun}"
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number} {plural}"


def printable(text: str) -> str:
    """Text of foreign origin (process names, paths, logs) made harmless for a terminal and for one line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def command(words: tuple[str, ...] | list[str]) -> str:
    """A command as one would type it."""
    import shlex

    return printable(shlex.join(words))
