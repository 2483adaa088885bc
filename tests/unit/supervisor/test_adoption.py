"""The supervisor's own reader of orders agrees with the protocol's, and is as strict."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstart.hooks.control import protocol
from hotstart.hooks.control.directory import ControlDirectory
from hotstart.hooks.supervisor.adoption import LIMIT, AdoptionFile, parse


@given(st.text(), st.integers(0, 1 << 22), st.text())
def test_both_readers_say_the_same(nonce: str, pid: int, reason: str) -> None:
    data = protocol.encode(protocol.Adoption(nonce, pid, reason))
    theirs, ours = protocol.decode_adoption(data), parse(data)
    assert (ours.nonce, ours.root_pid, ours.cold_start_reason) == (
        theirs.nonce,
        theirs.root_pid,
        theirs.cold_start_reason,
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"nonce":1}',
        b'{"nonce":"a","root_pid":"1"}',
        b'{"nonce":"a","more":1}',
        b" " * (LIMIT + 1),
    ],
)
def test_what_is_no_order_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(data)


def test_each_order_is_seen_once(tmp_path: Path) -> None:
    control = ControlDirectory.create(tmp_path / "control")
    reader = AdoptionFile(str(tmp_path / "control" / "agent" / "root"))
    assert reader.fresh() is None
    control.adopt(protocol.Adoption("a", 100))
    first = reader.fresh()
    assert first is not None
    assert (first.nonce, first.root_pid) == ("a", 100)
    assert reader.fresh() is None
    control.adopt(protocol.Adoption("b", cold_start_reason="x"))
    second = reader.fresh()
    assert second is not None
    assert second.cold_start_reason == "x"
    assert reader.fresh() is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(protocol.encode(protocol.Adoption("a", 100)))
    (tmp_path / "root").symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        AdoptionFile(str(tmp_path / "root")).fresh()
