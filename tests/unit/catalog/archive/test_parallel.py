"""Copying in portions: every byte once, in its place, and the first error is told after all threads have ended."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstart.snapshot_agent.catalog.archive import parallel

segments = st.lists(st.integers(1, 3 * parallel.PORTION), max_size=8)


@given(segments, st.integers(0, 1 << 40))
def test_portions_cover_every_byte_once(lengths: list[int], data: int) -> None:
    pieces, position = [], 0
    for length in lengths:
        pieces.append((position + 100, length))
        position += 100 + length
    moves = [move for portion in parallel.portions(pieces, data) for move in portion]
    expected = data
    for start, in_archive, length in moves:
        assert in_archive == expected
        assert any(begin <= start and start + length <= begin + size for begin, size in pieces)
        expected += length
    assert expected - data == sum(lengths)
    assert len({start for start, _archive, _length in moves}) == len(moves)
    for portion in parallel.portions(pieces, data):
        assert 0 < sum(length for _start, _archive, length in portion) <= parallel.PORTION


def test_many_small_pieces_are_cut_too() -> None:
    portions = list(parallel.portions([(n * 8192, 1) for n in range(10_000)], 0))
    assert sum(len(portion) for portion in portions) == 10_000
    assert len(portions) > 1


def test_copy_and_its_end(tmp_path: Path) -> None:
    content = os.urandom(700_001)
    (tmp_path / "a").write_bytes(content)
    source, target = os.open(tmp_path / "a", os.O_RDONLY), os.open(tmp_path / "b", os.O_RDWR | os.O_CREAT)
    try:
        buffer = bytearray(parallel.BUFFER)
        assert parallel.copy(source, 1, target, 10, 700_000, buffer) == 700_000
        assert os.pread(target, 800_000, 10) == content[1:]
        assert parallel.copy(source, 700_000, target, 0, 5, buffer) == 1
        assert parallel.copy(source, 800_000, target, 0, 5, buffer) == 0
    finally:
        os.close(source)
        os.close(target)


@pytest.mark.parametrize("total", [0, 1 << 30])
def test_all_work_is_done(total: int) -> None:
    done: list[int] = []
    parallel.run([lambda buffer, n=n: done.append(n) for n in range(100)], total)  # type: ignore[misc]
    assert sorted(done) == list(range(100))
    parallel.run([], total)


@pytest.mark.parametrize("total", [0, 1 << 30])
def test_the_first_error_is_told(total: int) -> None:
    before = threading.active_count()

    def fail(buffer: bytearray) -> None:
        raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        parallel.run([fail] * 50, total)
    assert threading.active_count() == before
