"""The memory table: round trip, and every damaged byte is refused with a reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstart import reasons
from hotstart.errors import HotstartError
from hotstart.snapshot_agent.memory.format import BLOCK_BYTES, Extent, Kind, Table, decode, encode

PAGES = 1 << 20
extents = st.builds(
    lambda pid, kind, address, length, offset: Extent(pid, kind, address * 4096, length * 4096, offset * 4096),
    st.integers(1, 1 << 31),
    st.sampled_from(Kind),
    st.integers(0, 1 << 40),
    st.integers(1, 1000),
    st.integers(0, PAGES - 1000),
)
blocks = st.dictionaries(
    st.integers(0, PAGES * 4096 // BLOCK_BYTES - 1), st.binary(min_size=32, max_size=32), max_size=30
)
tables = st.builds(
    lambda e, b: Table(PAGES * 4096, tuple(e), dict(sorted(b.items()))), st.lists(extents, max_size=20), blocks
)


@given(tables)
def test_round_trip(table: Table) -> None:
    assert decode(encode(table)) == table


@given(tables, st.data())
def test_every_flipped_bit_is_refused(table: Table, data: st.DataObject) -> None:
    raw = bytearray(encode(table))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(HotstartError) as caught:
        decode(bytes(raw))
    assert caught.value.reason is reasons.MEMORY_FILE_INVALID


@given(tables, st.data())
def test_every_truncation_is_refused(table: Table, data: st.DataObject) -> None:
    raw = encode(table)
    with pytest.raises(HotstartError):
        decode(raw[: data.draw(st.integers(0, len(raw) - 1))])


@given(st.binary(max_size=400))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(HotstartError):
        decode(noise)
