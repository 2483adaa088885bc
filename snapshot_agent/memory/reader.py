"""Reads the memory table and verifies the memory file against it, block by block."""

from __future__ import annotations

import os
from pathlib import Path

from hotstart.durable import read_bounded
from hotstart.snapshot_agent.memory import format as table_format
from hotstart.snapshot_agent.memory.blocks import Told, data_blocks, digest_blocks
from hotstart.snapshot_agent.memory.format import Table


def read_table(path: Path) -> Table:
    """The table in ``path``; raises ``memory-file-invalid``, FileNotFoundError."""
    return table_format.decode(read_bounded(path, table_format.LIMIT))


def verify(memory: Path, table: Table, told: Told | None = None) -> list[str]:
    """Every way in which the memory file differs from its table; an empty list means every byte is right.

    Data outside the table's blocks is damage too: a hole is a promise of zeros.
    """
    fd = os.open(memory, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(fd).st_size
        if size != table.memory_bytes:
            return [f"is {size} bytes long instead of {table.memory_bytes}"]
        listed = list(table.blocks)
        found = digest_blocks(fd, size, listed, told=told)
        damage = [f"block {i} has other bytes than at capture" for i in listed if found[i] != table.blocks[i]]
        zero = bytes(table_format.BLOCK_BYTES)
        for index in data_blocks(fd, size):
            if index not in table.blocks:
                data = os.pread(fd, table_format.BLOCK_BYTES, index * table_format.BLOCK_BYTES)
                if data != zero[: len(data)]:
                    damage.append(f"block {index} holds data where the capture had none")
        return damage
    finally:
        os.close(fd)
