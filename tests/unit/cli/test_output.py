"""Tables: whole in a pipe, fitted to a terminal; foreign text stays text."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstart.snapshot_agent.cli import output
from hotstart.snapshot_agent.cli.output import Column, Fit, Styled

COLUMNS = [Column("NAME"), Column("BYTES", right=True), Column("COMMAND", Fit.CUT), Column("WHY", Fit.WRAP)]
ROWS = [["chat", "7", "python -m vllm --model /models/chat", "since the moon was full"], ["b", "100", "sleep", ""]]


def test_plain_is_aligned_and_whole() -> None:
    assert output.plain(COLUMNS, ROWS) == (
        "NAME  BYTES  COMMAND                              WHY\n"
        "chat      7  python -m vllm --model /models/chat  since the moon was full\n"
        "b       100  sleep\n"
    )


def test_fitted_cuts_and_wraps_what_may_be() -> None:
    assert output.fitted(COLUMNS, ROWS, 40, color=False) == (
        "NAME  BYTES  COMMAND       WHY\n"
        "chat      7  python -m v…  since the\n"
        "                           moon was full\n"
        "b       100  sleep\n"
    )


def test_fitted_leaves_what_fits() -> None:
    assert output.fitted(COLUMNS, ROWS, 200, color=False) == output.plain(COLUMNS, ROWS)


def test_a_hopelessly_narrow_terminal_still_gets_whole_names() -> None:
    text = output.fitted(
        [Column("NAME"), Column("ADDRESS")], [["a-long-name-of-a-sandbox", "10.231.0.2"]], 12, color=False
    )
    assert "a-long-name-of-a-sandbox  10.231.0.2" in text


def test_color_only_where_asked_for() -> None:
    rows = [[Styled("good", "good"), Styled("bad", "bad")]]
    columns = [Column("A"), Column("B")]
    assert "\x1b[32mgood" in output.fitted(columns, rows, 80, color=True)
    assert "\x1b" not in output.fitted(columns, rows, 80, color=False)


@pytest.mark.parametrize("foreign", ["\x1b[31mred", "[red]markup[/red]", ":smile:", "a\nb", "\x07"])
def test_foreign_text_stays_text(foreign: str) -> None:
    for text in (
        output.plain([Column("X")], [[foreign]]),
        output.fitted([Column("X")], [[foreign]], 80, color=False),
    ):
        assert text.count("\n") == 2
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "[red]" in output.fitted([Column("X")], [["[red]x"]], 80, color=False)


@given(
    st.lists(st.tuples(st.sampled_from(list(Fit)), st.integers(0, 60)), min_size=1, max_size=8),
    st.integers(1, 200),
)
def test_shrinking_never_touches_what_must_stay_whole(given_: list[tuple[Fit, int]], wide: int) -> None:
    columns = [Column("", fit) for fit, _ in given_]
    natural = [width for _, width in given_]
    widths = output.shrink(columns, natural, wide)
    assert all(0 <= new <= old for new, old in zip(widths, natural, strict=True))
    assert all(new == old for column, new, old in zip(columns, widths, natural, strict=True) if column.fit is Fit.WHOLE)
    total = sum(widths) + 2 * (len(widths) - 1)
    shrunk = [new for column, new in zip(columns, widths, strict=True) if column.fit is not Fit.WHOLE and new > 8]
    assert total <= wide or not shrunk
    assert total == min(sum(natural) + 2 * (len(widths) - 1), max(wide, total))


def test_no_stdout_and_no_stderr_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    output.write("x")
    output.write_bytes(b"x")
    output.say("x")
