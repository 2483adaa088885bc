"""The cache of set-up artifacts: whole or absent, made once, also when two want it at the same time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tools.cache import STAMP, Artifact, recipe_hash


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOTSTART_CACHE", str(tmp_path))
    return tmp_path


def _fill(staging: Path) -> None:
    (staging / "content").write_text("made")


def test_it_is_made_once() -> None:
    calls = []

    def counted(staging: Path) -> None:
        calls.append(staging)
        _fill(staging)

    artifact = Artifact("thing", recipe_hash("v1"))
    for _ in range(2):
        artifact.make(counted)
    assert len(calls) == 1
    assert artifact.ready()
    assert (artifact.path / "content").read_text() == "made"


def test_another_recipe_is_another_artifact() -> None:
    old, new = Artifact("thing", recipe_hash("v1")), Artifact("thing", recipe_hash("v2"))
    old.make(_fill)
    assert not new.ready()
    assert old.path != new.path


def test_a_recipe_is_its_parts_and_not_their_concatenation(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("b")
    assert recipe_hash("a", tmp_path / "file") == recipe_hash("a", "b")
    assert recipe_hash("ab", "") != recipe_hash("a", "b")


def test_nothing_is_left_of_a_failure(own_cache: Path) -> None:
    artifact = Artifact("models/thing", recipe_hash("v1"))

    def half(staging: Path) -> None:
        _fill(staging)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        artifact.make(half)
    assert not artifact.ready()
    assert [path.name for path in (own_cache / "models").iterdir() if not path.name.endswith(".lock")] == []
    artifact.make(_fill)
    assert artifact.ready()


def test_a_leftover_without_its_stamp_does_not_count() -> None:
    artifact = Artifact("thing", recipe_hash("v1"))
    artifact.make(_fill)
    (artifact.path / STAMP).unlink()
    (artifact.path / "content").write_text("half")
    assert not artifact.ready()
    artifact.make(_fill)
    assert (artifact.path / "content").read_text() == "made"


def test_two_at_once_make_one() -> None:
    artifact = Artifact("thing", recipe_hash("v1"))
    made = []

    def slow(staging: Path) -> None:
        made.append(staging)
        time.sleep(0.1)
        _fill(staging)

    threads = [threading.Thread(target=artifact.make, args=(slow,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
