"""Sizes, durations, ages and foreign text as people read them."""

from datetime import UTC, datetime

import pytest

from hotstart.snapshot_agent import units


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10 * 1024, "10.0 KiB"),
        (1023 * 1024, "1.00 MiB"),
        (71_512_883, "68.2 MiB"),
        (700 << 20, "700 MiB"),
        (1_400_000_000, "1.30 GiB"),
        (5 << 50, "5.00 PiB"),
        (5000 << 50, "5000 PiB"),
    ],
)
def test_size(count: int, text: str) -> None:
    assert units.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.00042, "0.4 ms"),
        (0.0094, "9.4 ms"),
        (0.031, "31 ms"),
        (0.3124, "312 ms"),
        (0.9996, "1.00 s"),
        (2.344, "2.34 s"),
        (31.16, "31.2 s"),
        (119.4, "119 s"),
        (119.6, "2 min 0 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert units.duration(seconds) == text


@pytest.mark.parametrize(
    ("created", "text"),
    [
        ("2026-01-02T03:04:00Z", "5s"),
        ("2026-01-02T03:02:00Z", "2m"),
        ("2026-01-02T03:02:06Z", "119s"),
        ("2026-01-02T00:04:05+00:00", "3h"),
        ("2026-01-01T05:04:05+02:00", "1d"),
        ("2026-01-02T04:00:00Z", "0s"),
        ("2026-01-02T03:04:00", "5s"),
        ("yesterday", "?"),
    ],
)
def test_age(created: str, text: str) -> None:
    assert units.age(created, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == text


def test_share_of_nothing_is_not_a_number() -> None:
    assert units.share(1, 0) == "-"
    assert units.share(0.655, 1.62) == "40 %"


@pytest.mark.parametrize(("number", "text"), [(0, "0 copies"), (1, "1 copy"), (2, "2 copies")])
def test_count(number: int, text: str) -> None:
    assert units.count(number, "copy") == text


def test_foreign_text_cannot_steer_a_terminal() -> None:
    assert units.printable("a\x1b[2Jb\nc\u202ed\udcff") == "a\\x1b[2Jb\\nc\\u202ed\\udcff"
    assert units.printable("größe 模型 ✓") == "größe 模型 ✓"


def test_command_is_quoted_as_typed() -> None:
    assert units.command(("sh", "-c", "echo hi\x07")) == "sh -c 'echo hi\\x07'"
