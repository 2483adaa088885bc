"""The memory table on disk: which ranges the memory file holds, and a digest of every block with data (pure).

docs/formats/memory-file.md is the same byte by byte; a test holds the two together.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from dataclasses import dataclass

from hotstart.errors import HotstartError
from hotstart.reasons import MEMORY_FILE_INVALID

MAGIC = b"HSMEMTB1"
BLOCK_BYTES = 128 << 10
LIMIT = 1 << 30
"""No table is larger than this many bytes."""

HEADER = struct.Struct("<8sIIQQQ")
"""magic, block bytes, flags (0), memory file bytes, number of extents, number of blocks"""
EXTENT = struct.Struct("<IIQQQ")
"""pid, kind, address, length, offset"""
BLOCK = struct.Struct("<Q32s")
"""block index, SHA-256 of the block (a last short block as it is)"""
_DIGEST = 32


class Kind(enum.IntEnum):
    """How an extent comes back."""

    MAPPED = 1
    """privately mapped by CRIU"""
    COPIED = 2
    """copied into anonymous memory at ``address`` of ``pid`` before the tasks run"""
    SHARED = 3
    """copied into a shared segment that is mapped at ``address`` of ``pid``"""


@dataclass(frozen=True)
class Extent:
    """One range of the memory file; ``pid`` is the process's pid in the sandbox's pid namespace."""

    pid: int
    kind: Kind
    address: int
    length: int
    offset: int


@dataclass(frozen=True)
class Table:
    """The whole table; ``blocks`` maps block index to SHA-256, in increasing order."""

    memory_bytes: int
    extents: tuple[Extent, ...]
    blocks: dict[int, bytes]


def encode(table: Table) -> bytes:
    """The table as the bytes of its file."""
    parts = [HEADER.pack(MAGIC, BLOCK_BYTES, 0, table.memory_bytes, len(table.extents), len(table.blocks))]
    parts += [EXTENT.pack(e.pid, e.kind, e.address, e.length, e.offset) for e in table.extents]
    parts += [BLOCK.pack(index, digest) for index, digest in sorted(table.blocks.items())]
    data = b"".join(parts)
    return data + hashlib.sha256(data).digest()


def decode_extents(data: bytes) -> tuple[Extent, ...]:
    """The extents alone, checked like ``decode`` does: all that a restore needs, in a fraction of the time."""
    memory_bytes, extents, _blocks = _header(data)
    return _extents(data, extents, memory_bytes)


def decode(data: bytes) -> Table:
    """Parse a table, distrusting every number; raises ``memory-file-invalid``."""
    memory_bytes, extents, _blocks = _header(data)
    digests: dict[int, bytes] = {}
    last = -1
    for index, digest in BLOCK.iter_unpack(data[HEADER.size + extents * EXTENT.size : -_DIGEST]):
        if index <= last or index * BLOCK_BYTES >= memory_bytes:
            raise _invalid("its blocks are not in order")
        digests[index] = digest
        last = index
    return Table(memory_bytes, _extents(data, extents, memory_bytes), digests)


def _header(data: bytes) -> tuple[int, int, int]:
    """Memory file bytes, number of extents, number of blocks; the digest of everything is checked."""
    if len(data) < HEADER.size + _DIGEST:
        raise _invalid("it is too short")
    magic, block_bytes, flags, memory_bytes, extents, blocks = HEADER.unpack_from(data)
    if magic != MAGIC or block_bytes != BLOCK_BYTES or flags:
        raise _invalid("its header is of another format")
    if len(data) != HEADER.size + extents * EXTENT.size + blocks * BLOCK.size + _DIGEST:
        raise _invalid("its size does not fit its counts")
    if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise _invalid("its digest is wrong")
    return memory_bytes, extents, blocks


def _extents(data: bytes, count: int, memory_bytes: int) -> tuple[Extent, ...]:
    raw = data[HEADER.size : HEADER.size + count * EXTENT.size]
    return tuple(_extent(values, memory_bytes) for values in EXTENT.iter_unpack(raw))


def _extent(values: tuple[int, int, int, int, int], memory_bytes: int) -> Extent:
    pid, kind, address, length, offset = values
    if kind not in (1, 2, 3) or not pid or not length or (address | length | offset) % 4096:
        raise _invalid("an extent is not valid")
    if offset + length > memory_bytes or address + length > 1 << 64:
        raise _invalid("an extent lies outside the memory file")
    return Extent(pid, Kind(kind), address, length, offset)


def _invalid(why: str) -> HotstartError:
    return HotstartError(MEMORY_FILE_INVALID, f"the memory table cannot be used: {why}")
