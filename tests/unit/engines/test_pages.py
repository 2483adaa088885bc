"""Memory given back: right bytes, right neighbours, and really gone."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

from hotstart.hooks.engines import cold_start, pages

PAGE = mmap.PAGESIZE


def _resident(address: int, length: int) -> int:
    """Bytes of physical memory behind exactly this range (a mapping may have grown together with its neighbour)."""
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(address // PAGE * 8)
        entries = memoryview(pagemap.read(length // PAGE * 8)).cast("Q")
    return sum(entry >> 62 != 0 for entry in entries) * PAGE


@pytest.mark.parametrize(
    ("address", "length", "expected"),
    [
        (0, 2 * PAGE, (0, 2 * PAGE)),
        (1, 2 * PAGE, (PAGE, 2 * PAGE)),
        (PAGE - 1, 2, (PAGE, PAGE)),
        (10, 20, (PAGE, PAGE)),
        (PAGE + 7, 3 * PAGE, (2 * PAGE, 4 * PAGE)),
    ],
)
def test_interior(address: int, length: int, expected: tuple[int, int]) -> None:
    assert pages.interior(address, length) == expected


@pytest.mark.parametrize(("offset", "length"), [(0, 8 * PAGE), (100, 8 * PAGE), (100, 300), (PAGE - 8, 16)])
def test_release_zeroes_the_range_and_nothing_else(offset: int, length: int) -> None:
    memory = mmap.mmap(-1, 16 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"\xaa" * len(memory))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    released = pages.release(address + offset, length)
    start, end = pages.interior(address + offset, length)
    assert released == end - start
    assert memory[offset : offset + length] == bytes(length)
    assert set(memory[:offset] + memory[offset + length :]) == {0xAA}
    memory[offset] = 7  # still writable, at the same address
    assert memory[offset] == 7


def test_release_gives_physical_memory_back() -> None:
    length = 32 << 20
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"\xaa" * length)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    before = _resident(address, length)
    assert before == length
    pages.release(address, length)
    assert _resident(address, length) == 0


def test_release_of_what_cannot_be_mapped_says_so() -> None:
    with pytest.raises(OSError, match="mmap of"):
        pages.release(1 << 60, 1 << 20)


def test_the_process_is_younger_than_the_machine() -> None:
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert 0 < cold_start.seconds_since_start() < uptime
