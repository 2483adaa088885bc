"""The archive's bytes: what is written is read back, and other programs understand it."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstart.snapshot_agent.catalog.archive import format as form
from hotstart.snapshot_agent.catalog.archive.format import Entry
from hotstart.snapshot_agent.catalog.archive.read import read
from tests.unit.catalog.archive.making import ROOT, archive, opened

names = st.binary(min_size=1, max_size=255).filter(lambda name: b"/" not in name and b"\0" not in name)
paths = st.lists(names.filter(lambda name: name not in (b".", b"..")), min_size=1, max_size=3).map(b"/".join)
ids = st.one_of(st.integers(0, 70_000), st.integers(0, (1 << 32) - 2))
times = st.one_of(st.integers(-(1 << 92), (1 << 92) - 1), st.integers(0, 1 << 34).map(lambda s: s * 10**9))
xattr_names = st.binary(max_size=40).filter(lambda name: b"\0" not in name).map(lambda name: b"user." + name)
xattrs = st.dictionaries(xattr_names, st.binary(max_size=200), max_size=3)
attributes = st.fixed_dictionaries(
    {"mode": st.integers(0, 0o7777), "uid": ids, "gid": ids, "mtime_ns": times, "xattrs": xattrs}
)


def same(one: Entry, other: Entry) -> bool:
    return all(getattr(one, slot) == getattr(other, slot) for slot in Entry.__slots__)


@given(attributes, st.sampled_from([form.FILE, form.FIFO, form.CHARACTER, form.SYMLINK, form.DIRECTORY]), names, paths)
def test_what_is_written_is_read(attributes: dict[str, object], kind: bytes, name: bytes, target: bytes) -> None:
    entry = Entry(name + b"x", kind, **attributes)  # type: ignore[arg-type]
    if kind == form.CHARACTER:
        entry.device = (4095, (1 << 20) - 1)
    if kind == form.SYMLINK:
        entry.link = target
    if kind == form.FILE:
        entry.size, entry.segments = 5, ((0, 5),)
    if len(entry.path) > 255:
        entry.path = entry.path[:255]
    data = {entry.path: b"12345"} if kind == form.FILE else {}
    with opened(archive([ROOT, entry], data)) as fd:
        tree, placed = read(fd)
        assert same(tree.entries[1], entry)
        assert os.pread(fd, 5, placed[1].data) == b"12345" or kind != form.FILE


@given(st.lists(st.tuples(st.integers(1, 1 << 40), st.integers(1, 600)), max_size=20), st.integers(0, 1 << 20))
def test_sparse_files(pieces: list[tuple[int, int]], tail: int) -> None:
    segments, position = [], 0
    for gap, length in pieces:
        segments.append((position + gap, length))
        position += gap + length
    entry = Entry(b"sparse", form.FILE, size=position + tail, segments=tuple(segments))
    if entry.size == 0:
        return
    data = bytes(range(256)) * 50
    with opened(archive([ROOT, entry], {b"sparse": data[: entry.data_bytes]})) as fd:
        tree, placed = read(fd)
        assert same(tree.entries[1], entry)
        assert os.pread(fd, entry.data_bytes, placed[1].data) == data[: entry.data_bytes]


@given(st.integers(0, 200_000))
def test_a_record_counts_itself(length: int) -> None:
    encoded = form.record(b"key", b"v" * length)
    assert int(encoded.split(b" ")[0]) == len(encoded)


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, b"0"), (1, b"0.000000001"), (-1, b"-0.000000001"), (-1_500_000_000, b"-1.5"), (12 * 10**9, b"12")],
)
def test_times(ns: int, text: bytes) -> None:
    assert form.encode_time(ns) == text


def test_bytes_of_a_plain_entry() -> None:
    """Byte by byte as docs/formats/snapshot.md says."""
    block = form.encode(Entry(b"a/b", form.FILE, mode=0o640, uid=8, gid=9, mtime_ns=10**9, size=3, segments=((0, 3),)))
    assert len(block) == 512
    assert block[0:100] == b"a/b".ljust(100, b"\0")
    assert block[100:108] == b"0000640\0"
    assert block[108:116] == b"0000010\0"
    assert block[116:124] == b"0000011\0"
    assert block[124:136] == b"00000000003\0"
    assert block[136:148] == b"00000000001\0"
    assert block[148:156] == b"%06o\0 " % sum(block[:148] + b" " * 8 + block[156:])
    assert block[156:157] == b"0"
    assert block[257:265] == b"ustar\x0000"
    assert block[329:345] == b"0000000\x000000000\0"
    assert not any(block[345:])


def test_python_reads_it_too(tmp_path: Path) -> None:
    entries = [
        ROOT,
        Entry(b"d" * 200, form.DIRECTORY, mode=0o755, mtime_ns=1_234_567_890),
        Entry(b"d" * 200 + b"/\xff" + b"x" * 120, form.FILE, uid=3_000_000, size=4, segments=((0, 4),)),
        Entry(b"d" * 200 + b"/link", form.LINK, link=b"d" * 200 + b"/\xff" + b"x" * 120),
        Entry(b"sparse", form.FILE, size=1 << 40, segments=((512, 4),), xattrs={b"user.a=b%": b"\0"}),
    ]
    path = tmp_path / "a.tar"
    path.write_bytes(archive(entries, {entries[2].path: b"data", b"sparse": b"DATA"}))
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        assert [os.fsencode(member.name) for member in members[1:]] == [entry.path for entry in entries]
        assert members[2].mtime == 1.23456789
        assert (members[3].uid, members[3].size) == (3_000_000, 4)
        assert members[4].islnk()
        assert (members[5].size, members[5].issparse()) == (1 << 40, True)
        assert members[5].pax_headers["SCHILY.xattr.user.a%3Db%25"] == "\0"
        assert tar.extractfile(members[3]).read() == b"data"  # type: ignore[union-attr]


def test_size_beyond_eight_gigabytes(tmp_path: Path) -> None:
    """The number does not fit the octal field; the file itself is a hole here."""
    size = 9 << 30
    entry = Entry(b"huge", form.FILE, size=size, segments=((0, size),))
    path = tmp_path / "a.tar"
    head = archive([ROOT], {})[: -2 * form.BLOCK] + form.encode(entry)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size + 2 * form.BLOCK)
    with path.open("rb") as file:
        tree, placed = read(file.fileno())
    assert same(tree.entries[1], entry)
    assert placed[1].data == len(head)


def test_attributes_that_are_too_large_are_refused() -> None:
    with pytest.raises(form.FormatError, match="extended attributes"):
        form.encode(Entry(b"a", form.FILE, xattrs={b"user.%d" % n: bytes(1 << 16) for n in range(200)}))
