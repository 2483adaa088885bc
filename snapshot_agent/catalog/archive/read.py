"""Reads an archive strictly, before anything of it is used: it may have been damaged or made by an enemy.

Nothing is applied here.  The whole structure is parsed and checked first, so that a bad archive changes nothing.
"""

from __future__ import annotations

import os

from hotstart.snapshot_agent.catalog.archive import format as form
from hotstart.snapshot_agent.catalog.archive.failure import TreeError
from hotstart.snapshot_agent.catalog.archive.format import BLOCK, Entry, FormatError, Tree

_WINDOW = 256 << 10
_END = bytes(2 * BLOCK)
_XATTR = b"SCHILY.xattr."


class Placed:
    """An entry and where its data begins in the archive."""

    __slots__ = ("data", "entry")

    def __init__(self, entry: Entry, data: int) -> None:
        self.entry = entry
        self.data = data


def read(fd: int) -> tuple[Tree, list[Placed]]:
    """Parse the archive behind ``fd`` (a regular file); raises TreeError for anything that no writer of ours makes.

    What is checked of names: relative, no ``.`` or ``..`` inside, each once, each below a directory of the archive,
    hard links only to files of the archive.  A tree that passes cannot name anything outside its root.
    """
    window = _Window(fd)
    tree = Tree()
    placed: list[Placed] = []
    try:
        position = _read_lists(window, tree)
        while True:
            window.label = f"header at byte {position}"
            if window.take(position, BLOCK) == _END[:BLOCK]:
                break
            entry, data = _read_entry(window, position)
            window.label = entry.path
            position = data + form.padded(entry.data_bytes)
            if position > window.size:
                raise FormatError("its data is cut off")
            _check_padding(window, data + entry.data_bytes, position)
            placed.append(Placed(entry, data))
        if window.take(position, 2 * BLOCK) != _END or position + 2 * BLOCK != window.size:
            raise FormatError("the archive does not end where it says")
        tree.entries = [one.entry for one in placed]
        _check_tree(tree, window)
    except FormatError as error:
        raise TreeError(window.label, str(error)) from None
    return tree, placed


class _Window:
    """Buffered reads at any offset of a file whose size is fixed at the start; ``label`` says what is being read."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self.label: bytes | str = "archive"
        self._start = 0
        self._data = b""

    def take(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes."""
        if offset + length > self.size:
            raise FormatError("the archive is cut off")
        begin = offset - self._start
        if begin < 0 or begin + length > len(self._data):
            self._data = os.pread(self.fd, max(length, _WINDOW), offset)
            self._start, begin = offset, 0
            if len(self._data) < length:
                raise FormatError("the archive was cut off while it was read")
        return self._data[begin : begin + length]


def _read_lists(window: _Window, tree: Tree) -> int:
    """The first member: whiteouts and opaque directories; returns where the next header is."""
    header = window.take(0, BLOCK)
    size = _octal(_fields(header)[4]) if header.startswith(form.TREE_MEMBER + b"\0") else form.TREE_LIMIT + 1
    if size > form.TREE_LIMIT or form.encode(form.tree_member(size)) != header:
        raise FormatError("it is not a Hotstart archive of this version")
    content = window.take(BLOCK, size)
    end = BLOCK + form.padded(size)
    _check_padding(window, BLOCK + size, end)
    lines = content.split(b"\0")
    if lines[0] != form.TREE_MAGIC or lines[-1]:
        raise FormatError("its first member is of another version")
    for line in lines[1:-1]:
        word, _space, path = line.partition(b" ")
        if word not in (b"whiteout", b"opaque"):
            raise FormatError("its first member holds an unknown line")
        (tree.whiteouts if word == b"whiteout" else tree.opaque).append(path)
    if tree.lists() != content:
        raise FormatError("the lines of its first member are out of order")
    return end


def _read_entry(window: _Window, position: int) -> tuple[Entry, int]:
    """One entry and the offset of its data."""
    block = window.take(position, BLOCK)
    fields = _fields(block)
    records: dict[bytes, bytes] = {}
    end = position + BLOCK
    if fields[7] == b"x":
        length = _octal(fields[4])
        if length > form.PAX_LIMIT:
            raise FormatError(f"an extended header of {length} bytes")
        records = _records(window.take(end, length))
        end += form.padded(length)
        fields = _fields(window.take(end, BLOCK))
        end += BLOCK
    entry, end = _entry(window, fields, records, end)
    expected = form.encode(entry)
    if end - position != len(expected) or window.take(position, len(expected)) != expected:
        raise FormatError("its header is not as Hotstart writes it")
    return entry, end


def _entry(window: _Window, fields: list[bytes], records: dict[bytes, bytes], end: int) -> tuple[Entry, int]:
    """Put an entry together; nothing needs to be complete here, because the caller encodes it again and compares."""
    kind = fields[7]
    if kind not in form.KINDS:
        raise FormatError(f"an entry of type {kind!r}")
    size = _decimal(records[b"size"]) if b"size" in records else _octal(fields[4])
    entry = Entry(
        records.get(b"GNU.sparse.name") or records.get(b"path") or fields[0].rstrip(b"\0"),
        kind,
        mode=_octal(fields[1]),
        uid=_decimal(records[b"uid"]) if b"uid" in records else _octal(fields[2]),
        gid=_decimal(records[b"gid"]) if b"gid" in records else _octal(fields[3]),
        mtime_ns=_time(records[b"mtime"]) if b"mtime" in records else _octal(fields[5]) * 1_000_000_000,
        link=records.get(b"linkpath") or fields[8].rstrip(b"\0"),
        device=(_octal(fields[13]), _octal(fields[14])),
        xattrs={_xattr_name(key): value for key, value in records.items() if key.startswith(_XATTR)},
    )
    if b"GNU.sparse.realsize" in records:
        entry.size = _decimal(records[b"GNU.sparse.realsize"])
        entry.segments, end = _read_map(window, end, entry.size)
    else:
        entry.size = size
        entry.segments = ((0, size),) if size else ()
    _check_entry(entry)
    return entry, end


def _check_entry(entry: Entry) -> None:
    """What a header may say of one entry, apart from its place in the tree."""
    if entry.mode > 0o7777:
        raise FormatError(f"mode {entry.mode:o}")
    if max(entry.uid, entry.gid) >= (1 << 32) - 1:
        raise FormatError(f"owner {entry.uid}:{entry.gid}")
    if entry.kind != form.FILE and entry.size:
        raise FormatError("data where none can be")
    if not -(1 << 63) <= entry.mtime_ns // 1_000_000_000 < 1 << 63:
        raise FormatError("a time that no file can have")
    if entry.size >= 1 << 63:
        raise FormatError("a size that no file can have")
    if bool(entry.link) != (entry.kind in (form.LINK, form.SYMLINK)) or len(entry.link) > form.PATH_LIMIT:
        raise FormatError("a link without a target, or a target without a link")
    if entry.kind == form.LINK and (entry.mode or entry.uid or entry.gid or entry.mtime_ns or entry.xattrs):
        raise FormatError("a hard link with attributes of its own")
    if entry.kind not in (form.CHARACTER, form.BLOCKDEV) and entry.device != (0, 0):
        raise FormatError("a device number without a device")
    for name in entry.xattrs:
        if not form.carried(name) or b"\0" in name:
            raise FormatError(f"extended attribute {name[:80]!r}")


def _read_map(window: _Window, start: int, size: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """A sparse file's map: its data segments in order, and where the data begins."""
    position = start

    def number() -> int:
        nonlocal position
        room = min(24, window.size - position)
        digits, newline, _rest = window.take(position, room).partition(b"\n")
        if not newline:
            raise FormatError("a broken map")
        position += len(digits) + 1
        return _decimal(digits)

    count = number()
    if count > form.SEGMENTS_LIMIT + 1:
        raise FormatError(f"{count} pieces")
    segments: list[tuple[int, int]] = []
    reached = 0
    for _ in range(count):
        offset, length = number(), number()
        if offset < reached or offset + length > size:
            raise FormatError("pieces that overlap or lie outside")
        reached = offset + length
        if length:
            segments.append((offset, length))
    return tuple(segments), start + form.padded(position - start)


def _check_tree(tree: Tree, window: _Window) -> None:
    """Every name has its place: see ``read``."""
    directories: set[bytes] = set()
    others: set[bytes] = set()
    for entry in tree.entries:
        window.label = entry.path
        if entry.path == form.ROOT:
            if directories or others or entry.kind != form.DIRECTORY:
                raise FormatError("the root is not the first directory")
        else:
            _check_path(entry.path)
            if _parent(entry.path) not in directories:
                raise FormatError("its directory does not precede it")
            if entry.path in directories or entry.path in others:
                raise FormatError("it occurs twice")
        if entry.kind == form.LINK and entry.link not in others:
            raise FormatError("a hard link to what does not precede it")
        (directories if entry.kind == form.DIRECTORY else others).add(entry.path)
    for path in tree.opaque:
        window.label = path
        if path not in directories or path == form.ROOT:
            raise FormatError("an opaque directory that is no directory of the archive")
    for path in tree.whiteouts:
        window.label = path
        _check_path(path)
        if _parent(path) not in directories or path in directories or path in others:
            raise FormatError("a whiteout that has no place")
    if len(set(tree.opaque)) < len(tree.opaque) or len(set(tree.whiteouts)) < len(tree.whiteouts):
        raise FormatError("a line of the first member occurs twice")


def _check_path(path: bytes) -> None:
    if not path or len(path) > form.PATH_LIMIT or b"\0" in path:
        raise FormatError("a path that cannot be")
    for part in path.split(b"/"):
        if part in (b"", b".", b"..") or len(part) > form.NAME_LIMIT:
            raise FormatError("a path that leads elsewhere")


def _parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0] or form.ROOT


def _check_padding(window: _Window, begin: int, end: int) -> None:
    if window.take(begin, end - begin).count(0) != end - begin:
        raise FormatError("something hides behind its data")


def _fields(block: bytes) -> list[bytes]:
    return list(form.HEADER.unpack(block))


def _octal(field: bytes) -> int:
    text = field.rstrip(b"\0")
    if not text or not text.isdigit() or text.strip(b"01234567"):
        raise FormatError("a number that is none")
    return int(text, 8)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise FormatError("a number that is none")
    return int(text)


def _time(text: bytes) -> int:
    sign, digits = (-1, text[1:]) if text.startswith(b"-") else (1, text)
    seconds, _point, fraction = digits.partition(b".")
    if len(fraction) > 9:
        raise FormatError("a time that is none")
    return sign * (_decimal(seconds) * 1_000_000_000 + _decimal(fraction.ljust(9, b"0")))


def _records(payload: bytes) -> dict[bytes, bytes]:
    """The records of an extended header by key."""
    records: dict[bytes, bytes] = {}
    position = 0
    while position < len(payload):
        digits, space, _rest = payload[position : position + 12].partition(b" ")
        length = _decimal(digits)
        begin, end = position + len(digits) + 1, position + length
        if not space or end > len(payload) or end <= begin or payload[end - 1 : end] != b"\n":
            raise FormatError("a broken extended header")
        key, equals, value = payload[begin : end - 1].partition(b"=")
        if not equals or key in records:
            raise FormatError("a broken extended header")
        records[key] = value
        position = end
    return records


def _xattr_name(key: bytes) -> bytes:
    return key[len(_XATTR) :].replace(b"%3D", b"=").replace(b"%25", b"%")
