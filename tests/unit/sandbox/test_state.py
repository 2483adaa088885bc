"""Files of a sandbox: read back unchanged, refused when damaged; the lock."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hotstart.errors import HotstartError
from hotstart.reasons import FILE_TOO_LARGE, NO_SUCH_SANDBOX, NOT_A_PLAIN_FILE, SANDBOX_START
from hotstart.snapshot_agent.sandbox import state
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec, Volume

RECORD = state.Record(
    spec=SandboxSpec(
        "n",
        ("a", "ü"),
        env={"X": "y\n"},
        groups=(1, 2),
        tmpfs=("/t",),
        volumes=(Volume("/s", "/t", read_only=False),),
        labels={"k": "v"},
    ),
    placeholder=True,
    created="2026-01-01T00:00:00Z",
    restored_from="snap",
)


def test_a_record_is_read_back_unchanged(tmp_path: Path) -> None:
    state.write_record(tmp_path, RECORD)
    assert state.read_record(tmp_path) == RECORD
    assert state.read_live(tmp_path) is None
    assert state.read_exit(tmp_path) is None


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HotstartError) as caught:
        state.read_record(tmp_path / "x")
    assert caught.value.reason is NO_SUCH_SANDBOX
    with pytest.raises(HotstartError) as caught:
        state.read_record(tmp_path)
    assert caught.value.reason is SANDBOX_START


def test_damage_is_refused(tmp_path: Path) -> None:
    good = msgspec.json.encode(RECORD)
    for bad in (b"", good[:-3], good.replace(b'"placeholder"', b'"unknown"'), b"[]"):
        (tmp_path / "sandbox.json").write_bytes(bad)
        with pytest.raises(HotstartError) as caught:
            state.read_record(tmp_path)
        assert caught.value.reason is SANDBOX_START
    (tmp_path / "live.json").write_bytes(b'{"init_pid":1}')
    with pytest.raises(HotstartError):
        state.read_live(tmp_path)
    (tmp_path / "exit.json").mkdir()
    with pytest.raises(HotstartError) as caught:
        state.read_exit(tmp_path)
    assert caught.value.reason is NOT_A_PLAIN_FILE
    with (tmp_path / "big").open("wb") as file:
        file.truncate(state.LIMIT + 1)
    (tmp_path / "sandbox.json").unlink()
    (tmp_path / "big").rename(tmp_path / "sandbox.json")
    with pytest.raises(HotstartError) as caught:
        state.read_record(tmp_path)
    assert caught.value.reason is FILE_TOO_LARGE


def test_one_at_a_time(tmp_path: Path) -> None:
    with state.Lock(tmp_path) as first, state.Lock(tmp_path) as second:
        assert first.take()
        assert first.take()
        assert not second.take()
    with state.Lock(tmp_path) as third:
        assert third.take()
