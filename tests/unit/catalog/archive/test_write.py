"""A tree that changes or resists while it is archived: refused with the path, and no archive is left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotstart.errors import HotstartError
from hotstart.snapshot_agent.capture.rootfs import estimate, relative, write_diff
from hotstart.snapshot_agent.catalog.archive import write
from hotstart.snapshot_agent.restore.rootfs import apply_diff
from tests.trees import describe


@pytest.fixture
def upper(tmp_path: Path) -> Iterator[Path]:
    """A small tree.  What a test made is removed here, because shutil, and so pytest, recurses and cannot go deep."""
    path = tmp_path / "upper"
    (path / "dir").mkdir(parents=True)
    (path / "dir" / "big").write_bytes(os.urandom(5 << 20))
    (path / "dir" / "small").write_bytes(b"small")
    yield path
    subprocess.run(["rm", "-rf", path, tmp_path / "root"], check=True)


def meddling(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Let ``change`` happen after the tree was walked and before its data is copied."""
    original = write.scan

    def scan(*args: object, **kwargs: object) -> object:
        found = original(*args, **kwargs)  # type: ignore[arg-type]
        change()
        return found

    monkeypatch.setattr(write, "scan", scan)


def replace(path: Path, make: Callable[[Path], object]) -> None:
    path.rename(path.parent.parent / "away")  # not unlinked: the new file must not get the old one's inode number
    make(path)


@pytest.mark.parametrize("name", ["big", "small"])
@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda path: os.truncate(path, 3), "became shorter"),
        (lambda path: path.unlink(), "No such file"),
        (lambda path: replace(path, os.mkfifo), "was replaced"),
        (lambda path: replace(path, lambda p: p.write_bytes(b"other")), "was replaced"),
        (lambda path: replace(path, lambda p: p.symlink_to("/etc/shadow")), "symbolic link"),
        (lambda path: path.parent.rename(path.parent.with_name("moved")), "No such file"),
    ],
)
def test_changes_while_copying(
    tmp_path: Path,
    upper: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    change: Callable[[Path], object],
    word: str,
) -> None:
    meddling(monkeypatch, lambda: change(upper / "dir" / name))
    with pytest.raises(HotstartError, match=f"dir/(big|small): .*{word}") as caught:
        write_diff(upper, tmp_path / "out.tar", skip_mounts=())
    assert caught.value.reason.code == "rootfs-diff-failed"
    assert not (tmp_path / "out.tar").exists()


def test_a_directory_swapped_for_a_symlink_is_not_followed(
    tmp_path: Path, upper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "small").write_text("the host's")

    def swap() -> None:
        (upper / "dir").rename(upper / "away")
        (upper / "dir").symlink_to(tmp_path / "secret")

    meddling(monkeypatch, swap)
    with pytest.raises(HotstartError, match="symbolic link"):
        write_diff(upper, tmp_path / "out.tar", skip_mounts=())


def test_a_file_that_grows_is_taken_as_it_was(tmp_path: Path, upper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe(upper)
    meddling(monkeypatch, lambda: (upper / "dir" / "small").open("ab").write(b"more" * 1000))
    write_diff(upper, tmp_path / "out.tar", skip_mounts=())
    (tmp_path / "root").mkdir()
    with (tmp_path / "out.tar").open("rb") as tar:
        apply_diff(tar, str(tmp_path / "root"))
    assert describe(tmp_path / "root") == before


def test_trees_deeper_than_any_path(tmp_path: Path, upper: Path) -> None:
    """A worker can make them with relative paths; the agent refuses them and is not caught in them."""
    fd = os.open(upper, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=fd)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    with pytest.raises(HotstartError, match=r"too (deep|long)") as caught:
        write_diff(upper, tmp_path / "out.tar", skip_mounts=())
    assert caught.value.reason.code == "rootfs-diff-failed"
    assert len(caught.value.line()) < 500


def test_depth_that_paths_can_name(tmp_path: Path, upper: Path) -> None:
    """Deeper than Python recurses and than descriptors may be open."""
    deep = upper
    for _ in range(1500):
        deep = deep / "d"
        deep.mkdir()
    before = describe(upper)
    write_diff(upper, tmp_path / "out.tar", skip_mounts=())
    root = tmp_path / "root"
    root.mkdir()
    for _ in range(2):
        with (tmp_path / "out.tar").open("rb") as tar:
            apply_diff(tar, str(root))
        assert describe(root) == before


def test_a_deep_tree_is_replaced_by_a_file(tmp_path: Path, upper: Path) -> None:
    root = tmp_path / "root"
    deep = root / "dir" / "small"
    deep.mkdir(parents=True)
    for _ in range(1500):
        deep = deep / "d"
        deep.mkdir()
    write_diff(upper, tmp_path / "out.tar", skip_mounts=())
    with (tmp_path / "out.tar").open("rb") as tar:
        apply_diff(tar, str(root))
    assert (root / "dir" / "small").read_bytes() == b"small"


def test_upper_must_be_a_directory(tmp_path: Path, upper: Path) -> None:
    (tmp_path / "link").symlink_to(upper)
    for wrong in (tmp_path / "link", tmp_path / "none", upper / "dir" / "small"):
        with pytest.raises(HotstartError) as caught:
            write_diff(wrong, tmp_path / "out.tar", skip_mounts=())
        assert caught.value.reason.code == "rootfs-diff-failed"


def test_estimate(tmp_path: Path, upper: Path) -> None:
    """Never less than the archive takes, and not much more."""
    with (upper / "hole").open("wb") as file:
        file.truncate(1 << 30)
    diff = write_diff(upper, tmp_path / "out.tar", skip_mounts=())
    assert diff.bytes <= estimate(upper) < diff.bytes + (1 << 20)


@pytest.mark.parametrize(
    ("paths", "top", "found"),
    [
        (["/", "/run", "/run/", "/a/b"], "/", [b"run", b"run", b"a/b"]),
        (["/run/x", "/run", "/running/x", "/"], "/run", [b"x"]),
        (["/dev/shm"], "/dev/shm", []),
        (["/dev/shm/caf\udce9"], "/dev/shm/", [b"caf\xe9"]),
    ],
)
def test_relative(paths: list[str], top: str, found: list[bytes]) -> None:
    assert relative(paths, top) == found
