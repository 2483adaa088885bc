"""Addresses and rtnetlink messages, as values."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstart.errors import HotstartError
from hotstart.names import SUBNET_ENV
from hotstart.reasons import NETWORK_UNUSABLE
from hotstart.snapshot_agent.sandbox import network, subnet

BASE = 10 << 24 | 231 << 16


def test_the_default_network() -> None:
    assert subnet.network({}) == (BASE, 1 << 16)
    assert subnet.network({SUBNET_ENV: "192.168.8.0/22"}) == (0xC0A80800, 1 << 10)


@pytest.mark.parametrize("text", ["x", "10.0.0.0/8", "10.0.0.1/24", "::/64", "10.0.0.0/31"])
def test_other_networks_are_refused(text: str) -> None:
    with pytest.raises(HotstartError) as caught:
        subnet.network({SUBNET_ENV: text})
    assert caught.value.reason is NETWORK_UNUSABLE


def test_a_name_fits_into_the_kernels_limit_and_tells_its_address() -> None:
    assert network.link_name(BASE + 1) == "hs0ae70001"
    assert all(len(network.link_name(address)) <= 15 for address in (0, BASE, 2**32 - 1))
    assert network.dotted(BASE + 258) == "10.231.1.2"


@given(st.sets(st.integers(0, 63)), st.lists(st.tuples(st.integers(-300, 600), st.integers(0, 80))))
def test_only_free_links_are_offered_each_once_the_lowest_first(
    taken: set[int], foreign: list[tuple[int, int]]
) -> None:
    names = [network.link_name(BASE + 4 * number + 1) for number in taken]
    ranges = [(BASE + start, BASE + start + length) for start, length in foreign]
    offered = list(network.candidates(BASE, 256, [*names, "eth0"], ranges))
    assert offered == sorted(set(offered))
    free = {
        BASE + 4 * number
        for number in range(64)
        if number not in taken
        and not any(low <= BASE + 4 * number + k <= high for k in range(4) for low, high in ranges)
    }
    assert set(offered) == free


def test_attributes_are_parsed_and_nonsense_ends() -> None:
    data = struct.pack("=HH5s3xHH4s", 9, 3, b"hs00\0", 8, 0x8000 | 7, b"abcd")
    assert network.attributes(data) == {3: b"hs00\0", 7: b"abcd"}
    assert network.attributes(data + b"\0\0\0\0") == {3: b"hs00\0", 7: b"abcd"}
    assert network.attributes(b"\x01") == {}
