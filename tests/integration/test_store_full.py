"""A full disk under the store, a real one: nothing is published and nothing is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hotstart.errors import HotstartError
from hotstart.linux.syscalls import MNT_DETACH, mount, umount
from hotstart.snapshot_agent.catalog.directory import DirectoryStore
from tests.unit.catalog.samples import entries, fill, manifest

pytestmark = pytest.mark.root

SIZE = 1 << 20


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of one megabyte."""
    mount("tmpfs", str(tmp_path), "tmpfs", 0, f"size={SIZE}")
    try:
        yield tmp_path
    finally:
        umount(str(tmp_path), MNT_DETACH)


def test_no_room_for_the_manifest(home: Path) -> None:
    store = DirectoryStore(home)
    staging = store.begin("chat")
    files = {"rootfs.tar": b"x", "memory": b"", "memory.table": b"", "tmpfs-0.tar": b""}
    fill(staging.path, files)
    described = manifest("chat", files=entries(files))
    filler = home / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(home).f_bavail == 0
    with pytest.raises(HotstartError) as caught:
        store.publish(staging, described)
    assert caught.value.reason.code == "disk-full"
    assert store.names() == []
    store.discard(staging)
    filler.unlink()
    assert os.listdir(home / "snapshots") == []
    assert store.free_bytes() > SIZE // 2
    staging = store.begin("chat")
    fill(staging.path, files)
    store.publish(staging, described)
    assert store.names() == ["chat"]


def test_no_room_for_a_staging_directory(home: Path) -> None:
    store = DirectoryStore(home)
    store.names()
    umount(str(home), MNT_DETACH)
    mount("tmpfs", str(home), "tmpfs", 0, "size=1m,nr_inodes=2")
    with pytest.raises(HotstartError) as caught:
        store.begin("chat")
    assert caught.value.reason.code == "disk-full"
