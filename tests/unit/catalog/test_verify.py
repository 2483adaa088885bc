"""Verification finds whatever happened to a file; the stamp notices whatever could have."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotstart.errors import HotstartError
from hotstart.snapshot_agent.catalog import stamp
from hotstart.snapshot_agent.catalog.directory import DirectoryStore
from hotstart.snapshot_agent.catalog.store import SnapshotHandle
from hotstart.snapshot_agent.catalog.verify import verify
from tests.unit.catalog.samples import FILES, fill, manifest


def memory_is_fine(memory: Path, table: Path, progress: Callable[[int, int], None]) -> list[str]:
    assert (memory.name, table.name) == ("memory", "memory.table")
    progress(1, 2)
    progress(2, 2)
    return [] if memory.read_bytes() == FILES["memory"] else ["block 0 has other bytes than at capture"]


@pytest.fixture
def snapshot(tmp_path: Path) -> Iterator[SnapshotHandle]:
    store = DirectoryStore(tmp_path)
    staging = store.begin("chat")
    fill(staging.path)
    store.publish(staging, manifest("chat"))
    with store.open("chat") as handle:
        yield handle


def damage(handle: SnapshotHandle) -> list[tuple[str, str]]:
    return [(found.path, found.what) for found in verify(handle, verify_memory=memory_is_fine)]


def overwrite(path: Path, content: bytes) -> None:
    """In place: same inode, same mode."""
    with path.open("r+b") as file:
        file.write(content)


def test_an_intact_snapshot(snapshot: SnapshotHandle) -> None:
    told: list[float] = []
    assert verify(snapshot, told.append, verify_memory=memory_is_fine) == []
    assert told == sorted(told)
    assert told[-1] == 1.0


@pytest.mark.parametrize("name", [name for name, content in FILES.items() if content])
def test_flipped_bits(snapshot: SnapshotHandle, name: str) -> None:
    path = snapshot.path / name
    content = path.read_bytes()
    flips = random.Random(1)
    for position in {0, len(content) - 1, len(content) // 2}:
        changed = bytearray(content)
        changed[position] ^= 1 << flips.randrange(8)
        overwrite(path, bytes(changed))
        found = damage(snapshot)
        assert (name, "has other bytes than at capture") in found or (name == "memory" and found[0][0] == "memory")
    overwrite(path, content)
    assert damage(snapshot) == []


@pytest.mark.parametrize("name", list(FILES))
def test_sizes(snapshot: SnapshotHandle, name: str) -> None:
    path, size = snapshot.path / name, len(FILES[name])
    os.truncate(path, size + 1)
    assert (name, f"is {size + 1} bytes long instead of {size}") in damage(snapshot)
    if size:
        os.truncate(path, size - 1)
        assert (name, f"is {size - 1} bytes long instead of {size}") in damage(snapshot)
    path.unlink()
    assert (name, "is missing") in damage(snapshot)


def test_a_damaged_table_leaves_nothing_to_check_memory_with(snapshot: SnapshotHandle) -> None:
    overwrite(snapshot.path / "memory.table", b"TABLE")
    assert damage(snapshot) == [
        ("memory", "cannot be checked, because its table is damaged"),
        ("memory.table", "has other bytes than at capture"),
    ]


def test_what_does_not_belong(snapshot: SnapshotHandle) -> None:
    (snapshot.path / "skeleton" / "extra.img").touch(mode=0o600)
    (snapshot.path / "dir").mkdir(mode=0o700)
    (snapshot.path / "link").symlink_to("/etc/passwd")
    assert damage(snapshot) == [
        ("dir", "does not belong to the snapshot"),
        ("link", "does not belong to the snapshot"),
        ("skeleton/extra.img", "does not belong to the snapshot"),
    ]


def test_other_kinds(snapshot: SnapshotHandle) -> None:
    """A fifo in a file's place must neither pass nor stop the verification."""
    (snapshot.path / "rootfs.tar").unlink()
    os.mkfifo(snapshot.path / "rootfs.tar", 0o600)
    (snapshot.path / "tmpfs-0.tar").rename(snapshot.path.parent / "moved")
    (snapshot.path / "tmpfs-0.tar").symlink_to(snapshot.path.parent / "moved")
    assert damage(snapshot) == [("rootfs.tar", "is not a plain file"), ("tmpfs-0.tar", "is not a plain file")]


def test_modes(snapshot: SnapshotHandle) -> None:
    (snapshot.path / "skeleton").chmod(0o750)
    (snapshot.path / "memory").chmod(0o644)
    assert damage(snapshot) == [
        ("memory", "has mode 0644 instead of 0600"),
        ("skeleton", "has mode 0750 instead of 0700"),
    ]


@pytest.mark.root
def test_owners(snapshot: SnapshotHandle) -> None:
    os.chown(snapshot.path / "memory", 1234, 0)
    assert damage(snapshot) == [("memory", "belongs to user 1234 instead of 0")]


def test_no_manifest_no_verification(snapshot: SnapshotHandle) -> None:
    (snapshot.path / "manifest.json").unlink()
    with pytest.raises(HotstartError) as caught:
        damage(snapshot)
    assert caught.value.reason.code == "manifest-invalid"


def stamped(home: Path, handle: SnapshotHandle) -> bool:
    assert damage(handle) == []
    return stamp.write(home, handle)


def test_no_stamp_no_trust(tmp_path: Path, snapshot: SnapshotHandle) -> None:
    assert not stamp.trusted(tmp_path, snapshot)


def test_a_stamp_holds_until_something_changes(tmp_path: Path, snapshot: SnapshotHandle) -> None:
    assert stamped(tmp_path, snapshot)
    assert stamp.trusted(tmp_path, snapshot)
    assert (tmp_path / "stamps").stat().st_mode & 0o777 == 0o700
    for name in FILES:
        (snapshot.path / name).read_bytes()
    assert stamp.trusted(tmp_path, snapshot)
    stamp.forget(tmp_path, "chat")
    stamp.forget(tmp_path, "chat")
    assert not stamp.trusted(tmp_path, snapshot)


def rewritten(path: Path) -> None:
    """The same bytes, another file."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    path.chmod(0o600)


def flipped_with_its_time_put_back(path: Path) -> None:
    before = path.stat()
    overwrite(path, b"X")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda path: overwrite(path, b"x"),
        flipped_with_its_time_put_back,
        rewritten,
        lambda path: os.truncate(path, 1),
        lambda path: path.unlink(),
        lambda path: path.chmod(0o644),
        lambda path: path.rename(path.with_name("other")),
        lambda path: path.with_name("extra").touch(),
        lambda path: path.with_name("extra").mkdir(),
        lambda path: path.parent.chmod(0o755),
    ],
)
@pytest.mark.parametrize("name", ["manifest.json", "memory", "skeleton/core-100.img"])
def test_every_change_ends_the_trust(
    tmp_path: Path, snapshot: SnapshotHandle, name: str, change: Callable[[Path], None]
) -> None:
    assert stamped(tmp_path, snapshot)
    change(snapshot.path / name)
    assert not stamp.trusted(tmp_path, snapshot)


def test_a_change_during_verification_is_not_stamped(tmp_path: Path, snapshot: SnapshotHandle) -> None:
    def meddle(memory: Path, table: Path, progress: Callable[[int, int], None]) -> list[str]:
        overwrite(snapshot.path / "rootfs.tar", b"")
        overwrite(snapshot.path / "skeleton" / "core-100.img", b"X")  # has been read by now
        return []

    assert verify(snapshot, verify_memory=meddle) == []
    assert not stamp.write(tmp_path, snapshot)
    assert not stamp.trusted(tmp_path, snapshot)


def test_a_change_in_the_same_tick_shows(tmp_path: Path, snapshot: SnapshotHandle) -> None:
    """File times advance every few milliseconds: the stamp waits until a later change must get another time."""
    path = snapshot.path / "memory"
    for _ in range(20):
        overwrite(path, FILES["memory"][:1])
        assert stamp.write(tmp_path, snapshot)
        overwrite(path, FILES["memory"][:1])
        assert not stamp.trusted(tmp_path, snapshot)


def test_a_time_in_the_future_is_not_stamped(
    tmp_path: Path, snapshot: SnapshotHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now - 3_600_000_000_000)
    assert not stamp.write(tmp_path, snapshot)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff", b'{"version": 2, "files": {}}', b'{"version": 1, "files": {}}']
)
def test_a_bad_stamp_is_no_stamp(tmp_path: Path, snapshot: SnapshotHandle, content: bytes) -> None:
    assert stamped(tmp_path, snapshot)
    (tmp_path / "stamps" / "chat.json").write_bytes(content)
    assert not stamp.trusted(tmp_path, snapshot)


def test_a_new_snapshot_of_the_same_name_is_not_trusted(tmp_path: Path, snapshot: SnapshotHandle) -> None:
    assert stamped(tmp_path, snapshot)
    snapshot.close()
    store = DirectoryStore(tmp_path)
    store.remove("chat")
    staging = store.begin("chat")
    fill(staging.path)
    store.publish(staging, manifest("chat"))
    with store.open("chat") as handle:
        assert not stamp.trusted(tmp_path, handle)
