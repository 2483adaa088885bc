"""CRIU's image files on disk: read and write one file, strictly.

Grammar (CRIU, images/ and lib/pycriu): eight bytes of magic, then ``uint32 size, message`` until the end of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from hotstart.durable import read_bounded
from hotstart.errors import HotstartError
from hotstart.reasons import IMAGE_UNEXPECTED
from hotstart.snapshot_agent.criu import images_pb2 as pb

LIMIT = 256 << 20
"""No metadata image is larger than this many bytes (memory pages are not read through here)."""
_COMMON_MAGIC = 0x54564319
_SECCOMP_MAGIC = 0x64413049
SECCOMP_HEADER = struct.pack("<II", _COMMON_MAGIC, _SECCOMP_MAGIC)
_SIZE = struct.Struct("<I")

M = TypeVar("M", bound=Message)


def records(data: bytes, label: str) -> tuple[bytes, list[bytes]]:
    """Split an image into its magic and its messages' bytes (pure)."""
    if len(data) < 8:
        raise HotstartError(IMAGE_UNEXPECTED, f"{label} is shorter than its magic")
    found: list[bytes] = []
    offset = 8
    while offset < len(data):
        if offset + 4 > len(data):
            raise HotstartError(IMAGE_UNEXPECTED, f"{label} ends inside a record")
        (size,) = _SIZE.unpack_from(data, offset)
        offset += 4
        if offset + size > len(data):
            raise HotstartError(IMAGE_UNEXPECTED, f"{label} ends inside a record")
        found.append(data[offset : offset + size])
        offset += size
    return data[:8], found


def parse(kind: type[M], data: bytes, label: str) -> M:
    """One message; raises ``image-unexpected``."""
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise HotstartError(IMAGE_UNEXPECTED, f"{label} holds a record that is not valid") from None
    return message


def read(path: Path, kind: type[M]) -> tuple[bytes, list[M]]:
    """All messages of one image file and its magic; raises ``image-unexpected``, FileNotFoundError."""
    magic, raw = records(read_bounded(path, LIMIT), path.name)
    return magic, [parse(kind, data, path.name) for data in raw]


def read_one(path: Path, kind: type[M]) -> tuple[bytes, M]:
    """The only message of an image file."""
    magic, messages = read(path, kind)
    if len(messages) != 1:
        raise HotstartError(IMAGE_UNEXPECTED, f"{path.name} holds {len(messages)} records instead of one")
    return magic, messages[0]


def read_pagemap(path: Path) -> tuple[bytes, pb.PagemapHead, list[pb.PagemapEntry]]:
    """A pagemap image: its head (which pages file) and its entries."""
    magic, raw = records(read_bounded(path, LIMIT), path.name)
    if not raw:
        raise HotstartError(IMAGE_UNEXPECTED, f"{path.name} has no head")
    head = parse(pb.PagemapHead, raw[0], path.name)
    return magic, head, [parse(pb.PagemapEntry, data, path.name) for data in raw[1:]]


def encode(magic: bytes, messages: Iterable[Message]) -> bytes:
    """The bytes of an image file (pure)."""
    parts = [magic]
    for message in messages:
        data = message.SerializePartialToString()
        parts += (_SIZE.pack(len(data)), data)
    return b"".join(parts)


def pages_of(entry: pb.PagemapEntry) -> int:
    """Number of 4 KiB pages of a pagemap entry (newer images have a 64-bit count)."""
    return entry.nr_pages or entry.compat_nr_pages


def pid_images(directory: Path, prefix: str) -> list[int]:
    """The ids N of the files ``prefix-N.img`` in ``directory``, sorted."""
    ids: list[int] = []
    for path in directory.glob(f"{prefix}-*.img"):
        text = path.name[len(prefix) + 1 : -4]
        if text.isdecimal():
            ids.append(int(text))
    return sorted(ids)


def threads_of(tree: Sequence[pb.PstreeEntry]) -> list[int]:
    """Every thread id of the tree (pids included)."""
    return [tid for entry in tree for tid in entry.threads]
