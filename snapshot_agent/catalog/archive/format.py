"""The archive's bytes: entries and their headers, written one way only (pure; docs/formats/snapshot.md).

A POSIX.1-2001 tar ("pax", readable by GNU tar) with GNU sparse format 1.0.  Each entry has exactly one encoding, so a
reader can demand that what it decoded encodes to the bytes that it read: nothing can hide in a header.
"""

from __future__ import annotations

import struct

BLOCK = 512
PAX_LIMIT = 8 << 20
"""No extended header is larger (the kernel allows 64 KiB of names and 64 KiB for each value)."""
TREE_LIMIT = 64 << 20
"""No list of whiteouts and opaque directories is larger."""
SEGMENTS_LIMIT = 1 << 20
"""No sparse file has more pieces of data."""
PATH_LIMIT = 4095
NAME_LIMIT = 255

FILE, LINK, SYMLINK, CHARACTER, BLOCKDEV, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
KINDS = frozenset((FILE, LINK, SYMLINK, CHARACTER, BLOCKDEV, DIRECTORY, FIFO))
_EXTENDED = b"x"

_EXTENDED_HEADERS: dict[int, bytes] = {}

ROOT = b"."
TREE_MEMBER = b".hotstart-tree"
TREE_MAGIC = b"hotstart-tree 1"

HEADER = struct.Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x")
_CHECKSUM = 148
"""Where the eight bytes of the checksum are, which counts them as spaces."""
_MAX_ID = 0o7777777
_MAX_SIZE = 0o77777777777
_XATTR = b"SCHILY.xattr."


class FormatError(ValueError):
    """The bytes are not what an archive of ours holds there."""


class Entry:
    """One name of the tree.

    ``path`` is relative (``.`` is the root), ``link`` the target of a symlink or the earlier name of a hard link,
    ``segments`` the (offset, length) pieces of a file that are data, in order; the rest of ``size`` is holes.
    A hard link carries nothing but its two names.
    """

    __slots__ = ("device", "gid", "kind", "link", "mode", "mtime_ns", "path", "segments", "size", "uid", "xattrs")

    def __init__(
        self,
        path: bytes,
        kind: bytes,
        *,
        mode: int = 0,
        uid: int = 0,
        gid: int = 0,
        mtime_ns: int = 0,
        size: int = 0,
        link: bytes = b"",
        device: tuple[int, int] = (0, 0),
        xattrs: dict[bytes, bytes] | None = None,
        segments: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.path = path
        self.kind = kind
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.mtime_ns = mtime_ns
        self.size = size
        self.link = link
        self.device = device
        self.xattrs = xattrs or {}
        self.segments = segments

    @property
    def sparse(self) -> bool:
        """True if the file has holes."""
        return self.size > 0 and self.segments != ((0, self.size),)

    @property
    def data_bytes(self) -> int:
        """Bytes of data that follow the header (without the sparse map)."""
        return sum(length for _offset, length in self.segments)


class Tree:
    """A whole tree: entries with parents before children, and what overlayfs says beside them.

    ``whiteouts`` are names that the lower layer has and the tree has not; ``opaque`` are directories of which nothing
    of the lower layer shows.  ``skipped`` were seen but cannot or must not travel: sockets, mounts.
    """

    __slots__ = ("entries", "opaque", "skipped", "whiteouts")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.whiteouts: list[bytes] = []
        self.opaque: list[bytes] = []
        self.skipped: list[bytes] = []

    def lists(self) -> bytes:
        """Content of the archive's first member."""
        lines = [TREE_MAGIC]
        lines += [b"whiteout " + path for path in self.whiteouts]
        lines += [b"opaque " + path for path in self.opaque]
        return b"".join(line + b"\0" for line in lines)


def tree_member(size: int) -> Entry:
    """The archive's first member, which holds ``Tree.lists()``."""
    return Entry(TREE_MEMBER, FILE, mode=0o600, size=size, segments=((0, size),))


def carried(xattr: bytes) -> bool:
    """True for extended attributes that travel; labels of security modules belong to the machine and do not."""
    return xattr.startswith((b"user.", b"trusted.")) or xattr in (
        b"security.capability",
        b"system.posix_acl_access",
        b"system.posix_acl_default",
    )


def padded(length: int) -> int:
    """``length`` rounded up to whole blocks."""
    return -(-length // BLOCK) * BLOCK


def encode(entry: Entry) -> bytes:
    """Everything that precedes the entry's data: extended header if needed, header, sparse map."""
    table = sparse_map(entry.segments, entry.size) if entry.sparse else b""
    name = b"GNUSparseFile/data" if entry.sparse else entry.path[:100]
    size = len(table) + entry.data_bytes
    records = _records(entry, size)
    header = _header(
        name,
        entry.kind,
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        size=size,
        mtime=entry.mtime_ns // 1_000_000_000,
        link=entry.link[:100],
        device=entry.device,
    )
    if not records:
        return header + table
    if len(records) > PAX_LIMIT:
        raise FormatError(f"its extended attributes take {len(records)} bytes; {PAX_LIMIT} can be carried")
    return _extended_header(len(records)) + _pad(records) + header + table


def _extended_header(size: int) -> bytes:
    """The block before ``size`` bytes of records; nearly every entry needs one, of few sizes."""
    if size not in _EXTENDED_HEADERS:
        header = _header(b"PaxHeaders/entry", _EXTENDED, mode=0o644, size=size)
        if size >= BLOCK:
            return header
        _EXTENDED_HEADERS[size] = header
    return _EXTENDED_HEADERS[size]


def _records(entry: Entry, size: int) -> bytes:
    # Names are bytes, UTF-8 or not.  The standard's word for that, hdrcharset=BINARY, makes GNU tar complain.
    parts: list[bytes] = []
    names = b"" if entry.sparse else entry.path
    if len(names) > 100:
        parts.append(record(b"path", names))
    if len(entry.link) > 100:
        parts.append(record(b"linkpath", entry.link))
    if entry.uid > _MAX_ID:
        parts.append(record(b"uid", b"%d" % entry.uid))
    if entry.gid > _MAX_ID:
        parts.append(record(b"gid", b"%d" % entry.gid))
    if entry.sparse:
        parts.append(record(b"GNU.sparse.major", b"1"))
        parts.append(record(b"GNU.sparse.minor", b"0"))
        parts.append(record(b"GNU.sparse.name", entry.path))
        parts.append(record(b"GNU.sparse.realsize", b"%d" % entry.size))
    if size > _MAX_SIZE:
        parts.append(record(b"size", b"%d" % size))
    if entry.mtime_ns % 1_000_000_000 or not 0 <= entry.mtime_ns // 1_000_000_000 <= _MAX_SIZE:
        parts.append(record(b"mtime", encode_time(entry.mtime_ns)))
    for name in sorted(entry.xattrs):
        key = _XATTR + name.replace(b"%", b"%25").replace(b"=", b"%3D")
        parts.append(record(key, entry.xattrs[name]))
    return b"".join(parts)


def record(key: bytes, value: bytes) -> bytes:
    """One ``length key=value\\n`` record; the length counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) > len(str(rest)):
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


def encode_time(ns: int) -> bytes:
    """Nanoseconds since 1970 as decimal seconds, without trailing zeros."""
    seconds, fraction = divmod(abs(ns), 1_000_000_000)
    sign = b"-" if ns < 0 else b""
    text = b"%s%d.%09d" % (sign, seconds, fraction)
    return text.rstrip(b"0").rstrip(b".")


def sparse_map(segments: tuple[tuple[int, int], ...], size: int) -> bytes:
    """The map of a sparse file, padded; a file that ends with a hole gets an empty last segment, as GNU tar has it."""
    pieces = list(segments)
    if not pieces or sum(pieces[-1]) < size:
        pieces.append((size, 0))
    return _pad(b"%d\n" % len(pieces) + b"".join(b"%d\n%d\n" % piece for piece in pieces))


def _pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def _header(
    name: bytes,
    kind: bytes,
    *,
    mode: int,
    uid: int = 0,
    gid: int = 0,
    size: int,
    mtime: int = 0,
    link: bytes = b"",
    device: tuple[int, int] = (0, 0),
) -> bytes:
    """One ustar block; numbers that do not fit stand in the extended header, and here as the nearest that does."""
    block = HEADER.pack(
        name,
        b"%07o" % mode,
        b"%07o" % min(uid, _MAX_ID),
        b"%07o" % min(gid, _MAX_ID),
        b"%011o" % min(size, _MAX_SIZE),
        b"%011o" % min(max(mtime, 0), _MAX_SIZE),
        b"        ",
        kind,
        link,
        b"ustar\0",
        b"00",
        b"",
        b"",
        b"%07o" % device[0],
        b"%07o" % device[1],
        b"",
    )
    return b"%b%06o\0 %b" % (block[:_CHECKSUM], sum(block), block[_CHECKSUM + 8 :])
