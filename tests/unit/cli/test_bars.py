"""Phases as bars of text."""

from hypothesis import given
from hypothesis import strategies as st

from hotstart.phases import Phase, unaccounted
from hotstart.snapshot_agent.cli import bars

PHASES = {
    "total_s": 10.0,
    "unaccounted_s": 2.0,
    "spans": [
        {"name": "late", "start_s": 5.0, "end_s": 9.0},
        {"name": "early", "start_s": 0.0, "end_s": 2.5},
        {"name": "late", "start_s": 4.0, "end_s": 6.0},
        {"name": "early", "start_s": 2.0, "end_s": 3.0},
    ],
}


def test_rows_in_order_of_appearance_with_the_rest_last() -> None:
    rows = bars.waterfall(PHASES, 20)
    assert [(row.name, row.bar, row.seconds) for row in rows] == [
        ("early", "██████              ", 3.0),
        ("late", "        ██████████  ", 5.0),
        ("unaccounted", "      ░░          ░░", 2.0),
    ]


def test_without_unicode() -> None:
    assert [row.bar for row in bars.waterfall(PHASES, 10, unicode=False)] == ["###       ", "    ##### ", "   .     ."]


def test_a_short_phase_is_still_seen() -> None:
    phases = {"total_s": 10.0, "unaccounted_s": 9.99, "spans": [{"name": "x", "start_s": 9.99, "end_s": 10.0}]}
    assert bars.waterfall(phases, 10)[0].bar == "         ▏"


def test_nothing_took_no_time() -> None:
    assert [row.bar for row in bars.waterfall({"total_s": 0.0, "unaccounted_s": 0.0, "spans": []}, 5)] == ["     "]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(-1, 12), st.floats(-1, 12)), max_size=8), st.integers(1, 40)
)
def test_bars_have_their_width_whatever_the_spans(spans: list[tuple[str, float, float]], width: int) -> None:
    ordered = [(name, min(a, b), max(a, b)) for name, a, b in spans]
    phases = {
        "total_s": 10.0,
        "unaccounted_s": unaccounted([Phase(*span) for span in ordered], 10.0),
        "spans": [{"name": n, "start_s": a, "end_s": b} for n, a, b in ordered],
    }
    for unicode in (True, False):
        rows = bars.waterfall(phases, width, unicode=unicode)
        assert {len(row.bar) for row in rows} == {width}
        assert [row.name for row in rows][-1] == "unaccounted"
