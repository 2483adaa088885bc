"""Archives that no writer of ours makes: always one error, and never a change outside the root (or any at all)."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

import pytest

from hotstart.errors import HotstartError
from hotstart.snapshot_agent.catalog.archive import format as form
from hotstart.snapshot_agent.catalog.archive.format import BLOCK, Entry
from hotstart.snapshot_agent.restore.rootfs import apply_diff
from tests.trees import describe
from tests.unit.catalog.archive.making import ROOT, archive, opened, padded, raw

ME = {"uid": os.getuid(), "gid": os.getgid()}
LISTS = form.TREE_MAGIC + b"\0"


def file(path: bytes, size: int = 0, **more: object) -> Entry:
    return Entry(path, form.FILE, mode=0o644, size=size, segments=((0, size),) if size else (), **ME, **more)  # type: ignore[arg-type]


def directory(path: bytes) -> Entry:
    return Entry(path, form.DIRECTORY, mode=0o755, **ME)


HERE = directory(form.ROOT)


def refused(content: bytes, root: Path, word: str | None = None) -> None:
    before = describe(root)
    with opened(content) as fd, pytest.raises(HotstartError, match=word) as caught:
        apply_diff(fd, str(root))
    assert caught.value.reason.code == "rootfs-apply-failed"
    assert describe(root) == before
    assert caught.value.line().isprintable()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The tree to write into, between files that nothing may touch."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("precious")
    root = tmp_path / "root"
    root.mkdir()
    (root / "there").write_text("was there")
    (root / "escape").symlink_to("../outside")
    return root


@pytest.mark.parametrize(
    "path",
    [
        b"/etc/passwd",
        b"../outside/new",
        b"a/../../outside/new",
        b"..",
        b"a/..",
        b"./a",
        b"a//b",
        b"a/",
        b"",
        b"/",
        b"a/.",
        b"x" * 256,
        b"a/" + b"y" * 4095,
    ],
)
def test_paths_that_lead_elsewhere(root: Path, path: bytes) -> None:
    refused(archive([HERE, directory(b"a"), file(path)], {}), root)
    refused(archive([HERE, directory(b"a"), directory(path)], {}), root)
    refused(archive([HERE, directory(b"a")], {}, whiteouts=(path,)), root)
    refused(archive([HERE, directory(b"a")], {}, opaque=(path,)), root)
    refused(archive([HERE, directory(b"a"), file(b"b"), Entry(b"c", form.LINK, link=path or b"?")], {}), root)


def test_nothing_goes_through_a_symlink(root: Path) -> None:
    """Neither through one of the archive, nor through one that is there."""
    link = Entry(b"link", form.SYMLINK, link=b"../outside", mode=0o777, **ME)
    refused(
        archive([HERE, link, file(b"link/new", 3)], {b"link/new": b"bad"}), root, "its directory does not precede it"
    )
    refused(archive([HERE, file(b"escape/new", 3)], {b"escape/new": b"bad"}), root, "its directory does not precede it")
    refused(archive([HERE, link], {}, whiteouts=(b"link/precious",)), root, "no place")
    with opened(archive([HERE, directory(b"escape"), file(b"escape/new", 3)], {b"escape/new": b"bad"})) as fd:
        apply_diff(fd, str(root))  # the symlink gives way to the directory
    assert (root / "escape" / "new").read_bytes() == b"bad"
    assert os.listdir(root.parent / "outside") == ["precious"]


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ([], "its directory does not precede it|no place|root"),
        ([file(b"a")], "root|precede"),
        ([HERE, HERE], "root"),
        ([file(form.ROOT)], "root"),
        ([HERE, file(b"a"), file(b"a")], "twice"),
        ([HERE, directory(b"a"), file(b"a")], "twice"),
        ([HERE, file(b"a/b"), directory(b"a")], "precede"),
        ([HERE, file(b"a"), file(b"a/b")], "precede"),
        ([HERE, Entry(b"l", form.LINK, link=b"there")], "hard link"),
        ([HERE, Entry(b"l", form.LINK, link=b"f"), file(b"f")], "hard link"),
        ([HERE, directory(b"d"), Entry(b"l", form.LINK, link=b"d")], "hard link"),
        ([HERE, file(b"f"), Entry(b"l", form.LINK, link=b"f", mode=0o4777)], "attributes of its own"),
        ([HERE, Entry(b"l", form.SYMLINK, mode=0o777)], "target"),
        ([HERE, Entry(b"l", form.SYMLINK, mode=0o777, link=b"x" * 5000)], "target"),
        ([HERE, Entry(b"f", form.FILE, link=b"x")], "target"),
        ([HERE, Entry(b"f", form.FIFO, device=(1, 1))], "device"),
        ([HERE, Entry(b"f", form.FIFO, mode=0o10644)], "mode"),
        ([HERE, Entry(b"f", form.FILE, uid=(1 << 32) - 1)], "owner"),
        ([HERE, Entry(b"f", form.FILE, mtime_ns=(1 << 63) * 10**9)], "time"),
        ([HERE, Entry(b"f", form.FILE, xattrs={b"security.selinux": b"x"})], "attribute"),
        ([HERE, Entry(b"f", form.FILE, xattrs={b"system.nfs4_acl": b"x"})], "attribute"),
        ([HERE, Entry(b"f", form.FILE, size=1 << 63, segments=((0, 3),))], "size"),
    ],
)
def test_trees_that_cannot_be(root: Path, entries: list[Entry], word: str) -> None:
    refused(archive(entries, {b"f": b"abc"}, whiteouts=() if entries else (b"there",)), root, word)


def test_whiteouts_and_opaque_directories_that_cannot_be(root: Path) -> None:
    tree = [HERE, directory(b"d"), file(b"f")]
    for whiteouts, opaque in (
        ((b"d",), ()),
        ((b"f",), ()),
        ((b"x/y",), ()),
        ((b"x", b"x"), ()),
        ((), (b"f",)),
        ((), (b"x",)),
        ((), (form.ROOT,)),
        ((), (b"d", b"d")),
    ):
        refused(archive(tree, {}, whiteouts=whiteouts, opaque=opaque), root)


@pytest.mark.parametrize(
    "lists",
    [
        b"",
        b"hotstart-tree 2\0",
        b"hotstart-tree 1",
        LISTS + b"whiteout x",
        LISTS + b"delete x\0",
        LISTS + b"whiteout\0",
        LISTS + b"opaque d\0whiteout x\0",
        b"\0" + LISTS,
    ],
)
def test_first_members_that_cannot_be(root: Path, lists: bytes) -> None:
    members = [(form.encode(entry), b"") for entry in (HERE, directory(b"d"))]
    refused(raw(lists, members), root)


def test_other_tars_are_refused(root: Path) -> None:
    header = form.encode(file(b"f", 3))

    def edited(at: int, value: bytes) -> bytes:
        block = header[:at] + value + header[at + len(value) :]
        total = sum(block[:148]) + 8 * 32 + sum(block[156:])
        return block[:148] + b"%06o\0 " % total + block[156:]

    tree = (form.encode(HERE), b"")
    for block in (
        edited(156, b"7"),
        edited(156, b"g"),
        edited(156, b"L"),
        edited(156, b"S"),
        edited(157, b"hidden link"),
        edited(257, b"ustar  \0"),
        edited(265, b"root"),
        edited(345, b"prefix"),
        edited(500, b"\1"),
        edited(124, b"77777777777\0"),
        edited(124, b"\x80" + bytes(10) + b"\3"),
        edited(124, b"0000000003 \0"),
        edited(124, b"-0000000003\0"),
        edited(100, b"       \0"),
        edited(3, b"hidden"),
    ):
        refused(raw(LISTS, [tree, (block, b"abc")]), root)
    refused(raw(LISTS, [tree, (header, b"abc" + bytes(100) + b"hidden")]), root, "hides")
    good = raw(LISTS, [tree, (header, b"abc")])
    refused(good + bytes(BLOCK), root, "end")
    refused(good[: -2 * BLOCK] + padded(b"more") + bytes(BLOCK), root)
    refused(b"", root, "cut off")
    refused(good[BLOCK:], root, "not a Hotstart archive")


@pytest.mark.parametrize(
    "records",
    [
        b"12 path=bad\n",
        b"99 path=abc\n",
        b"0 path=abc\n",
        b"-1 path=abc\n",
        b"11 pathabcd\n",
        b"12 path=a\n\n\n\n",
        b"14 size=4095x\n",
        form.record(b"path", b"short"),
        form.record(b"path", b"x" * 120) * 2,
        form.record(b"mtime", b"1.0000000001"),
        form.record(b"mtime", b"1e9"),
        form.record(b"mtime", b"1.50"),
        form.record(b"uid", b"5"),
        form.record(b"unknown", b"key"),
        form.record(b"SCHILY.xattr.user.b", b"") + form.record(b"SCHILY.xattr.user.a", b""),
        form.record(b"GNU.sparse.realsize", b"9999"),
        form.record(b"size", b"9" * 30),
        b"",
    ],
)
def test_extended_headers_that_cannot_be(root: Path, records: bytes) -> None:
    whole = form.encode(file(b"f", 3, xattrs={b"user.x": b""}))
    extended = whole[:124] + b"%011o\0" % len(records) + whole[136:BLOCK]
    total = sum(extended[:148]) + 8 * 32 + sum(extended[156:])
    extended = extended[:148] + b"%06o\0 " % total + extended[156:]
    header = extended + padded(records) + whole[-BLOCK:]
    refused(raw(LISTS, [(form.encode(HERE), b""), (header, b"abc")]), root)


def test_sparse_maps_that_cannot_be(root: Path) -> None:
    good = Entry(b"s", form.FILE, size=1 << 20, segments=((4096, 512),), **ME)  # type: ignore[arg-type]
    header = form.encode(good)[:-BLOCK]
    for text in (
        b"2\n4096\n512\n1048576\n1\n",
        b"2\n4096\n512\n4000\n0\n",
        b"1\n4096\n512\n",
        b"2\n-4096\n512\n1048576\n0\n",
        b"2\n4096\n99999999999999999999\n1048576\n0\n",
        b"999999999999\n4096\n512\n",
        b"02\n4096\n512\n1048576\n0\n",
        b"2\n4096\n512\n1048576\n0\nhidden",
        b"x" * 512,
        b"",
    ):
        refused(raw(LISTS, [(form.encode(HERE), b""), (header + padded(text), bytes(512))]), root)


def specimen() -> bytes:
    """A sound archive with one of everything."""
    entries = [
        HERE,
        directory(b"d"),
        file(b"d/f", 700, xattrs={b"user.x": b"1"}, mtime_ns=1_000_000_001),
        Entry(b"d/l", form.LINK, link=b"d/f"),
        Entry(b"d/s", form.SYMLINK, link=b"../../outside/precious", mode=0o777, **ME),  # type: ignore[arg-type]
        Entry(b"fifo", form.FIFO, mode=0o600, **ME),  # type: ignore[arg-type]
        Entry(b"sparse", form.FILE, mode=0o600, size=1 << 20, segments=((4096, 5),), **ME),  # type: ignore[arg-type]
        file(b"there", 3),
        file(b"z" * 150),
    ]
    data = {b"d/f": b"f" * 700, b"sparse": b"abcde", b"there": b"new"}
    return archive(entries, data, whiteouts=(b"gone",), opaque=(b"d",))


def test_cut_off_anywhere(root: Path) -> None:
    content = specimen()
    for length in range(0, len(content), BLOCK):
        refused(content[:length], root)
        refused(content[: length + 100], root)


def test_bits_flipped_everywhere(root: Path, tmp_path: Path) -> None:
    """In headers and maps every flip is refused.  Names, times and contents have no check sum of their own in a tar
    (the manifest has one of the whole file): a flip there may pass, but never reaches outside."""
    content = specimen()
    outside = describe(root.parent / "outside")
    flips = random.Random(3)
    passed = 0
    for position in range(flips.randrange(3), len(content), 3):
        changed = bytearray(content)
        changed[position] ^= 1 << flips.randrange(8)
        target = tmp_path / f"r{position}"
        target.mkdir()
        with opened(bytes(changed)) as fd, suppress(HotstartError):  # any other exception fails the test
            apply_diff(fd, str(target))
            passed += 1
        if position % 512 < 3:
            assert describe(root.parent / "outside") == outside
    assert describe(root.parent / "outside") == outside
    data = 700 + 5 + 3 + len(b"gone") + 150 + 20
    assert passed < data * 0.5, "flips of padding and headers must not pass"
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("r")) == ["outside"]


def test_an_archive_that_is_no_file(root: Path) -> None:
    read, write = os.pipe()
    os.close(write)
    with pytest.raises(HotstartError):
        apply_diff(read, str(root))
    os.close(read)


def test_the_specimen_is_sound(root: Path) -> None:
    """Or the tests above prove nothing."""
    with opened(specimen()) as fd:
        assert apply_diff(fd, str(root)) == 10
    assert (root / "there").read_bytes() == b"new"
    assert os.readlink(root / "d" / "s") == "../../outside/precious"
    assert (root / "sparse").read_bytes()[4096:4101] == b"abcde"
    assert os.stat(root / "d" / "f").st_nlink == 2
    assert ROOT.path == form.ROOT
