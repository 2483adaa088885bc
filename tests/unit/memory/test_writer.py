"""The memory file's writer and verifier on real files."""

import os
import random
from pathlib import Path

from hotstart.snapshot_agent.memory import reader
from hotstart.snapshot_agent.memory.blocks import data_blocks, digest_blocks
from hotstart.snapshot_agent.memory.format import BLOCK_BYTES, Table
from hotstart.snapshot_agent.memory.writer import PAGE, Run, copy_runs


def _source(path: Path, pages: int, seed: int) -> bytes:
    rng = random.Random(seed)
    data = b"".join(rng.choice((bytes(PAGE), rng.randbytes(PAGE), bytes(PAGE - 1) + b"\1")) for _ in range(pages))
    path.write_bytes(data)
    return data


def _written(tmp_path: Path, pages: int = 3000) -> tuple[bytes, Path, Table, int, int]:
    data = _source(tmp_path / "pages", pages, 7)
    half = pages // 2 * PAGE
    runs = [Run(0, 10 << 21, half), Run(half, 3 << 30, len(data) - half)]
    size = (3 << 30) + len(data)
    source = os.open(tmp_path / "pages", os.O_RDONLY)
    memory = os.open(tmp_path / "memory", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(memory, size)
        written = copy_runs(source, memory, runs)
        blocks = digest_blocks(memory, size, list(data_blocks(memory, size)))
    finally:
        os.close(source)
        os.close(memory)
    return data, tmp_path / "memory", Table(size, (), blocks), written.data_bytes, written.zero_bytes


def test_every_page_arrives_and_zero_pages_are_holes(tmp_path: Path) -> None:
    data, memory, _table, data_bytes, zero_bytes = _written(tmp_path)
    half = len(data) // PAGE // 2 * PAGE
    with memory.open("rb") as f:
        f.seek(10 << 21)
        assert f.read(half) == data[:half]
        f.seek(3 << 30)
        assert f.read(len(data) - half) == data[half:]
    zeros = sum(data[i : i + PAGE] == bytes(PAGE) for i in range(0, len(data), PAGE))
    assert (data_bytes, zero_bytes) == (len(data) - zeros * PAGE, zeros * PAGE)
    assert memory.stat().st_blocks * 512 < data_bytes + (1 << 20)


def test_verify_finds_a_flipped_bit_and_data_in_a_hole(tmp_path: Path) -> None:
    data, memory, table, _, _ = _written(tmp_path, 600)
    assert reader.verify(memory, table) == []
    with memory.open("r+b") as f:
        f.seek((3 << 30) + len(data) // 2 // PAGE * PAGE)
        index = f.tell() // BLOCK_BYTES
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 4]))
        f.seek(1 << 30)
        f.write(b"x")
    assert reader.verify(memory, table) == [
        f"block {index} has other bytes than at capture",
        f"block {(1 << 30) // BLOCK_BYTES} holds data where the capture had none",
    ]


def test_verify_finds_a_truncated_file(tmp_path: Path) -> None:
    _, memory, table, _, _ = _written(tmp_path, 60)
    os.truncate(memory, table.memory_bytes - PAGE)
    assert reader.verify(memory, table) == [
        f"is {table.memory_bytes - PAGE} bytes long instead of {table.memory_bytes}"
    ]
