"""The directory store's own matters: private directories, left-overs of removals, and what it makes of a bad place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotstart.errors import HotstartError
from hotstart.snapshot_agent.catalog.directory import DirectoryStore
from tests.unit.catalog.samples import fill, manifest


def publish(home: Path, name: str = "chat") -> Path:
    store = DirectoryStore(home)
    staging = store.begin(name)
    fill(staging.path)
    store.publish(staging, manifest(name))
    return home / "snapshots" / name


def reason(home: Path, name: str = "chat") -> HotstartError:
    with pytest.raises(HotstartError) as caught:
        DirectoryStore(home).open(name)
    return caught.value


def test_the_directory_is_private(tmp_path: Path) -> None:
    publish(tmp_path / "home")
    assert (tmp_path / "home" / "snapshots").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o707])
def test_a_store_that_others_can_enter_is_refused(tmp_path: Path, mode: int) -> None:
    publish(tmp_path)
    (tmp_path / "snapshots").chmod(mode)
    for call in (lambda: DirectoryStore(tmp_path).begin("x"), DirectoryStore(tmp_path).names):
        with pytest.raises(HotstartError, match="is open to others") as caught:
            call()
        assert caught.value.reason.code == "store-unusable"
    (tmp_path / "snapshots").chmod(0o700)
    assert DirectoryStore(tmp_path).names() == ["chat"]


def test_a_snapshot_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    publish(tmp_path).chmod(0o755)
    assert reason(tmp_path).reason.code == "store-unusable"
    assert "chmod 700" in reason(tmp_path).line()


def test_a_link_is_no_snapshot_and_no_store(tmp_path: Path) -> None:
    real = publish(tmp_path / "real")
    home = tmp_path / "home"
    (home / "snapshots").mkdir(mode=0o700, parents=True)
    (home / "snapshots" / "chat").symlink_to(real)
    assert reason(home).reason.code == "no-such-snapshot"
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "snapshots").symlink_to(tmp_path / "real" / "snapshots")
    with pytest.raises(HotstartError) as caught:
        DirectoryStore(tmp_path / "linked").names()
    assert caught.value.reason.code == "store-unusable"


def test_files_and_hidden_names_are_no_snapshots(tmp_path: Path) -> None:
    publish(tmp_path)
    (tmp_path / "snapshots" / "file").touch()
    (tmp_path / "snapshots" / "Odd Name").mkdir()
    (tmp_path / "snapshots" / ".hidden").mkdir()
    assert DirectoryStore(tmp_path).names() == ["chat"]
    assert reason(tmp_path, "file").reason.code == "no-such-snapshot"


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(HotstartError) as caught:
        DirectoryStore(tmp_path / "home").begin("chat")
    assert caught.value.reason.code == "store-unusable"


def test_a_removal_that_crashed_is_finished(tmp_path: Path) -> None:
    """After its rename, the snapshot is gone for everybody; what is left of it goes with the next operation."""
    publish(tmp_path)
    left = tmp_path / "snapshots" / ".removed.chat.0123456789ab"
    (tmp_path / "snapshots" / "chat").rename(left)
    assert DirectoryStore(tmp_path).sweep() == ["chat"]
    assert os.listdir(tmp_path / "snapshots") == []


def test_an_open_snapshot_outlives_its_home_being_renamed(tmp_path: Path) -> None:
    """The manifest is read through the leased directory, not by its name."""
    publish(tmp_path / "home")
    with DirectoryStore(tmp_path / "home").open("chat") as handle:
        (tmp_path / "home").rename(tmp_path / "elsewhere")
        assert handle.manifest.name == "chat"
