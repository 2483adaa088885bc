"""The layout of the memory file: congruent offsets, no shared blocks, always below the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstart.snapshot_agent.memory.layout import HUGE, WIDE_GAP, Span, place

PAGE = 4096
spans = st.builds(
    lambda pid, start, pages: Span(pid, start * PAGE, (start + pages) * PAGE),
    st.integers(1, 300),
    st.integers(0, 1 << 35),
    st.integers(1, 1 << 18),
)


@given(st.lists(spans, max_size=40))
def test_ranges_never_share_a_huge_block_and_keep_their_phase(ranges: list[Span]) -> None:
    offsets, size = place(ranges)
    end = 0
    for span, offset in zip(ranges, offsets, strict=True):
        assert offset % HUGE == span.start % HUGE
        assert offset // HUGE * HUGE >= end
        end = -(-(offset + span.end - span.start) // HUGE) * HUGE
    assert size == end
    assert size % PAGE == 0


def test_gaps_are_wide_when_there_is_room() -> None:
    offsets, _ = place([Span(1, 0, PAGE), Span(1, PAGE, 2 * PAGE)])
    assert offsets[1] - offsets[0] >= WIDE_GAP


def test_gaps_shrink_before_the_file_system_limit_is_reached() -> None:
    ranges = [Span(1, i * HUGE, (i + 1) * HUGE) for i in range(1000)]
    limit = 10 << 30
    offsets, size = place(ranges, limit=limit)
    assert size <= limit
    assert len(set(offsets)) == 1000


def test_what_cannot_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        place([Span(1, 0, 2 << 30)], limit=1 << 30)
