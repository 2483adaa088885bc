"""The start file: read back unchanged, refused when cut off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstart.hooks.control.start import Start, decode, encode
from hotstart.hooks.launcher import capabilities

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
NAMES = st.text(st.characters(exclude_characters="\0=", exclude_categories=["Cs"]), min_size=1)
STARTS = st.builds(
    Start,
    st.lists(WORDS, min_size=1).map(tuple),
    st.dictionaries(NAMES, WORDS),
    WORDS,
    st.integers(0, 2**32 - 2),
    st.integers(0, 2**32 - 2),
    st.lists(st.integers(0, 2**32 - 2)).map(tuple),
    st.sampled_from(["auto", "none"]),
)


def _fields(start: Start) -> list[object]:
    return [getattr(start, name) for name in Start.__slots__]


@given(STARTS)
def test_round_trip(start: Start) -> None:
    assert _fields(decode(encode(start))) == _fields(start)


@given(STARTS, st.data())
def test_a_file_that_was_cut_off_is_refused_or_has_fewer_variables(start: Start, data: st.DataObject) -> None:
    whole = encode(start)
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        found = decode(part)
    except ValueError:
        return
    assert found.command == start.command
    assert len(found.env) < len(start.env)


@pytest.mark.parametrize(
    "start",
    [
        Start((), {}),
        Start(("a\0",), {}),
        Start(("a",), {"": "x"}),
        Start(("a",), {"a=b": "x"}),
        Start(("a",), {"a": "\0"}),
    ],
)
def test_what_the_kernel_would_not_take_is_refused(start: Start) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode(start)


def test_capabilities_that_stay() -> None:
    everything = (1 << 41) - 1
    kept = capabilities.mask(everything)
    for name, number in {
        "sys_admin": 21,
        "mknod": 27,
        "sys_module": 16,
        "sys_ptrace": 19,
        "net_admin": 12,
        "dac_read_search": 2,
    }.items():
        assert not kept >> number & 1, name
    assert capabilities.mask(0) == 0
    assert capabilities.mask(kept) == kept
