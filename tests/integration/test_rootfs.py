"""The root file system's changes travel through real overlays: what the first worker saw, the second sees."""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotstart.errors import HotstartError
from hotstart.linux.syscalls import MNT_DETACH, mount, umount
from hotstart.snapshot_agent.capture.rootfs import RootfsDiff, write_diff
from hotstart.snapshot_agent.restore.rootfs import apply_diff
from tests.trees import describe

pytestmark = pytest.mark.root

CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
"""cap_net_bind_service=ep"""


class Overlay:
    """A lower directory that many overlays share, each with an upper directory of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.lower = home / "lower"
        self.lower.mkdir()
        self.mounted: list[Path] = []

    def fresh(self, name: str, *, options: str = "", lower: Path | None = None) -> Path:
        """Mount a new overlay; returns its merged directory."""
        for part in ("upper", "work", "merged"):
            (self.home / name / part).mkdir(parents=True)
        merged = self.home / name / "merged"
        data = (
            f"lowerdir={lower or self.lower},upperdir={self.upper(name)},workdir={self.home / name / 'work'}{options}"
        )
        mount("overlay", str(merged), "overlay", 0, data)
        self.mounted.append(merged)
        return merged

    def upper(self, name: str) -> Path:
        return self.home / name / "upper"

    def close(self) -> None:
        for merged in reversed(self.mounted):
            umount(str(merged), MNT_DETACH)


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Overlay]:
    made = Overlay(tmp_path)
    try:
        yield made
    finally:
        made.close()


def carry(overlay: Overlay, *, skip: tuple[str, ...] = ()) -> tuple[RootfsDiff, Path, Path]:
    """Capture the overlay ``one`` and apply it to a fresh overlay ``two``; returns the diff, the archive, two."""
    archive = overlay.home / "rootfs.tar"
    diff = write_diff(overlay.upper("one"), archive, skip_mounts=skip)
    two = overlay.fresh("two")
    with archive.open("rb") as tar:
        apply_diff(tar, str(two))
    return diff, archive, two


def fill_lower(lower: Path) -> None:
    for name in ("kept", "modified", "deleted", "renamed", "chmodded", "appended", "becomes-dir", "becomes-link"):
        (lower / name).write_text(f"lower {name}\n" * 10)
    for name in ("dirdel", "dirkept", "dirgone", "dirmoved", "becomes-file"):
        (lower / name / "sub").mkdir(parents=True)
        (lower / name / "a").write_text("a")
        (lower / name / "sub" / "b").write_text("b")
    os.link(lower / "kept", lower / "kept-too")
    (lower / "link-to-etc").symlink_to("/etc")
    os.setxattr(lower / "dirkept", "user.lower", b"goes away")


def change(root: Path) -> None:
    """Everything that a worker may do to its root file system."""
    (root / "modified").write_bytes(os.urandom(70_000))
    (root / "deleted").unlink()
    (root / "renamed").rename(root / "renamed-to")
    (root / "chmodded").chmod(0o4711)
    with (root / "appended").open("a") as file:
        file.write("more\n")
    (root / "becomes-dir").unlink()
    (root / "becomes-dir").mkdir()
    (root / "becomes-dir" / "inner").write_text("inner")
    (root / "becomes-link").unlink()
    (root / "becomes-link").symlink_to("nowhere/at all")
    subprocess.run(["rm", "-r", root / "dirdel", root / "dirgone", root / "becomes-file"], check=True)
    (root / "dirdel").mkdir(mode=0o750)  # a new directory over a deleted one: opaque
    (root / "dirdel" / "new").write_text("new")
    (root / "becomes-file").write_text("a file now")
    subprocess.run(["mv", root / "dirmoved", root / "dirmoved-to"], check=True)
    (root / "dirkept" / "a").unlink()
    os.removexattr(root / "dirkept", "user.lower")
    os.setxattr(root / "dirkept", "user.upper", b"stays")
    create(root)


def create(root: Path) -> None:
    """Names of every kind that the lower layer does not have."""
    (root / "empty").touch()
    (root / "l1").write_text("linked")
    os.link(root / "l1", root / "l2")
    (root / "deep" / "er").mkdir(parents=True)
    os.link(root / "l1", root / "deep" / "er" / "l3")
    os.chown(root / "l1", 1000, 1001)
    os.setxattr(root / "l1", "user.foo", b"bar\0\xff=\n")
    os.setxattr(root / "l1", "user.with=sign%", b"")
    (root / "suid").write_text("#!")
    os.chown(root / "suid", 12, 34)
    (root / "suid").chmod(0o6755)
    (root / "capable").write_text("#!")
    os.setxattr(root / "capable", "security.capability", CAPABILITY)
    os.mkfifo(root / "fifo", 0o640)
    os.link(root / "fifo", root / "fifo-too")
    os.mknod(root / "null", 0o020666, os.makedev(1, 3))
    os.mknod(root / "disk", 0o060600, os.makedev(259, 70000))
    (root / "symlink").symlink_to("x" * 300)
    os.chown(root / "symlink", 7, 8, follow_symlinks=False)
    os.setxattr(root / "symlink", "trusted.of", b"a symlink", follow_symlinks=False)
    os.utime(root / "symlink", ns=(1, 123_456_789), follow_symlinks=False)
    name = os.fsencode(root) + b"/n\xff\xfe \n\xc3\xa9"
    Path(os.fsdecode(name)).write_text("not UTF-8")
    Path(os.fsdecode(name + b"-dir" + b"\xfd" * 120)).mkdir()
    Path(os.fsdecode(name + b"-dir" + b"\xfd" * 120 + b"/in")).symlink_to(b"to\xff" * 60)
    long = root / ("d" * 200) / ("e" * 200)
    long.mkdir(parents=True)
    (long / ("f" * 255)).write_bytes(b"512 bytes exactly" + b"." * 495)
    with (root / "sparse").open("wb") as file:
        file.truncate(3 << 30)
        for offset in (0, 1 << 20, (3 << 30) - 4096):
            file.seek(offset)
            file.write(os.urandom(4096))
    with (root / "hole").open("wb") as file:
        file.truncate(5 << 30)
    (root / "big").write_bytes(os.urandom(20 << 20))
    (root / "sticky").mkdir()
    (root / "sticky").chmod(0o3777)
    for path, ns in (("empty", 0), ("sticky", -1_500_000_000), ("suid", 2**33 * 10**9 + 5), ("capable", 10**9)):
        os.utime(root / path, ns=(ns, ns))


def test_everything_a_worker_does(overlay: Overlay) -> None:
    fill_lower(overlay.lower)
    one = overlay.fresh("one")
    change(one)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(one / "socket"))
    diff, archive, two = carry(overlay)
    server.close()
    assert describe(two) == describe(one, skip=frozenset([b"socket"]))
    assert diff.skipped == (b"socket",)
    assert diff.bytes == archive.stat().st_size < 30 << 20
    assert archive.stat().st_mode & 0o777 == 0o600
    names = {path.name for path in two.iterdir()}
    assert not names & {"deleted", "renamed", "dirgone", "socket"}
    assert sorted(os.listdir(two / "dirdel")) == ["new"]
    assert (two / "sparse").stat().st_blocks * 512 < 1 << 20
    listed = subprocess.run(["tar", "-tvf", archive], capture_output=True, check=True)
    assert listed.stderr == b""
    assert len(listed.stdout.splitlines()) == diff.entries + 1


def test_second_generation(overlay: Overlay) -> None:
    """A restored sandbox is captured again: its archive gives the same tree once more."""
    fill_lower(overlay.lower)
    one = overlay.fresh("one")
    change(one)
    _diff, _archive, two = carry(overlay)
    (two / "modified").write_text("again")
    (two / "deleted").write_text("back")
    again = overlay.home / "again.tar"
    write_diff(overlay.upper("two"), again, skip_mounts=())
    three = overlay.fresh("three")
    with again.open("rb") as tar:
        apply_diff(tar, str(three))
    assert describe(three) == describe(two)


def test_nothing_changed(overlay: Overlay) -> None:
    fill_lower(overlay.lower)
    one = overlay.fresh("one")
    diff, _archive, two = carry(overlay)
    assert (diff.entries, diff.whiteouts, diff.opaque) == (1, 0, 0)
    assert describe(two) == describe(one)


def test_read_only_root_needs_no_change(overlay: Overlay) -> None:
    overlay.fresh("one")
    archive = overlay.home / "rootfs.tar"
    write_diff(overlay.upper("one"), archive, skip_mounts=())
    two = overlay.fresh("two", options=",ro")
    os.utime(overlay.upper("two"), ns=(0, overlay.upper("one").stat().st_mtime_ns))
    with archive.open("rb") as tar:
        assert apply_diff(tar, str(two)) == 1


def test_opaque_directory_of_overlayfs_is_seen(overlay: Overlay) -> None:
    """The kernel, not this test, makes the marks that are read."""
    fill_lower(overlay.lower)
    one = overlay.fresh("one")
    change(one)
    diff, _archive, _two = carry(overlay)
    assert diff.opaque >= 1
    assert diff.whiteouts >= 4


def acl(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_access_control_lists(overlay: Overlay) -> None:
    """A default ACL of the lower layer must not give new files an ACL that the worker's files did not have."""
    nobody = (1 << 32) - 1
    default = acl((1, 7, nobody), (2, 6, 1000), (4, 5, nobody), (0x10, 7, nobody), (0x20, 0, nobody))
    lower = overlay.lower / "dir"
    lower.mkdir()
    os.setxattr(lower, "system.posix_acl_default", default)
    one = overlay.fresh("one")
    for name in ("inherits", "plain", "own"):
        (one / "dir" / name).write_text(name)
    os.mkfifo(one / "dir" / "fifo", 0o622)
    assert "system.posix_acl_access" in os.listxattr(one / "dir" / "inherits")
    os.removexattr(one / "dir" / "plain", "system.posix_acl_access")
    own = acl((1, 6, nobody), (2, 7, 1001), (4, 4, nobody), (0x10, 5, nobody), (0x20, 4, nobody))
    os.setxattr(one / "dir" / "own", "system.posix_acl_access", own)
    (one / "dir" / "sub").mkdir()
    _diff, _archive, two = carry(overlay)
    assert describe(two) == describe(one)


def test_mount_points_are_left_out(overlay: Overlay) -> None:
    one = overlay.fresh("one")
    for name in ("proc", "run", "deep/data"):
        (one / name).mkdir(parents=True)
        (one / name / "hidden").write_text("under a mount")
    diff, _archive, two = carry(overlay, skip=("/", "/proc", "/run/", "/run/inner", "/deep/data"))
    assert sorted(os.listdir(two)) == ["deep"]
    assert os.listdir(two / "deep") == []
    assert set(diff.skipped) == {b"proc", b"run", b"deep/data"}


def test_whiteouts_in_xattr_form(overlay: Overlay) -> None:
    """Kernels from 6.7 on write them where an overlay lies on an overlay."""
    fill_lower(overlay.lower)
    overlay.fresh("one")
    umount(str(overlay.mounted.pop()))
    upper = overlay.upper("one")
    (upper / "dirkept").mkdir()
    os.setxattr(upper / "dirkept", "trusted.overlay.opaque", b"x")
    (upper / "dirkept" / "a").touch()
    os.setxattr(upper / "dirkept" / "a", "trusted.overlay.whiteout", b"y")
    diff, _archive, two = carry(overlay)
    assert (diff.whiteouts, diff.opaque) == (1, 0)
    assert os.listdir(two / "dirkept") == ["sub"]


@pytest.mark.parametrize(
    ("xattr", "value"),
    [("redirect", b"/elsewhere"), ("metacopy", b""), ("protattr", b"i"), ("opaque", b"z"), ("whatever", b"1")],
)
def test_incomplete_upper_directories_are_refused(overlay: Overlay, xattr: str, value: bytes) -> None:
    upper = overlay.home / "upper"
    (upper / "some" / "dir").mkdir(parents=True)
    os.setxattr(upper / "some" / "dir", f"trusted.overlay.{xattr}", value)
    with pytest.raises(HotstartError, match=f"some/dir: .*trusted.overlay.{xattr}") as caught:
        write_diff(upper, overlay.home / "out.tar", skip_mounts=())
    assert caught.value.reason.code == "rootfs-diff-failed"
    assert not (overlay.home / "out.tar").exists()


def test_rename_with_redirect_is_refused(overlay: Overlay) -> None:
    fill_lower(overlay.lower)
    one = overlay.fresh("one", options=",redirect_dir=on")
    (one / "dirmoved").rename(one / "dirmoved-to")
    with pytest.raises(HotstartError, match=r"dirmoved-to: .*redirect"):
        write_diff(overlay.upper("one"), overlay.home / "out.tar", skip_mounts=())


def test_metacopy_is_refused(overlay: Overlay) -> None:
    fill_lower(overlay.lower)
    one = overlay.fresh("one", options=",metacopy=on")
    (one / "kept").chmod(0o600)
    with pytest.raises(HotstartError, match=r"kept: .*metacopy"):
        write_diff(overlay.upper("one"), overlay.home / "out.tar", skip_mounts=())


def test_a_mount_in_the_way_is_never_entered(overlay: Overlay, tmp_path: Path) -> None:
    """The archive says that a directory is gone; in the sandbox a volume is mounted below it."""
    fill_lower(overlay.lower)
    one = overlay.fresh("one")
    subprocess.run(["rm", "-r", one / "dirgone"], check=True)
    archive = overlay.home / "rootfs.tar"
    write_diff(overlay.upper("one"), archive, skip_mounts=())
    two = overlay.fresh("two")
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "precious").write_text("theirs")
    mount(str(volume), str(two / "dirgone" / "sub"), "", 4096)
    overlay.mounted.append(two / "dirgone" / "sub")
    with archive.open("rb") as tar, pytest.raises(HotstartError, match="dirgone") as caught:
        apply_diff(tar, str(two))
    assert caught.value.reason.code == "rootfs-apply-failed"
    assert (volume / "precious").read_text() == "theirs"


def test_changes_below_a_volume_are_refused(overlay: Overlay, tmp_path: Path) -> None:
    one = overlay.fresh("one")
    (one / "data").mkdir()
    (one / "data" / "file").write_text("the snapshot's")
    archive = overlay.home / "rootfs.tar"
    write_diff(overlay.upper("one"), archive, skip_mounts=())
    two = overlay.fresh("two")
    (two / "data").mkdir()
    volume = tmp_path / "volume"
    volume.mkdir()
    mount(str(volume), str(two / "data"), "", 4096)
    overlay.mounted.append(two / "data")
    with archive.open("rb") as tar, pytest.raises(HotstartError, match="data"):
        apply_diff(tar, str(two))
    assert os.listdir(volume) == []


def test_symlinks_of_the_image_are_not_followed(overlay: Overlay, tmp_path: Path) -> None:
    """The archive has a directory where this image has a symlink that leads out."""
    outside = tmp_path / "outside"
    outside.mkdir()
    other = overlay.home / "other-lower"
    other.mkdir()
    (other / "dir").symlink_to(outside)
    one = overlay.fresh("one")
    (one / "dir").mkdir()
    (one / "dir" / "file").write_text("inside")
    archive = overlay.home / "rootfs.tar"
    write_diff(overlay.upper("one"), archive, skip_mounts=())
    two = overlay.fresh("two", lower=other)
    with archive.open("rb") as tar:
        apply_diff(tar, str(two))
    assert os.listdir(outside) == []
    assert (two / "dir" / "file").read_text() == "inside"
    assert not (two / "dir").is_symlink()


def test_a_full_disk_leaves_no_archive(overlay: Overlay, tmp_path: Path) -> None:
    one = overlay.fresh("one")
    (one / "big").write_bytes(os.urandom(8 << 20))
    small = tmp_path / "small"
    small.mkdir()
    mount("tmpfs", str(small), "tmpfs", 0, "size=4m")
    overlay.mounted.append(small)
    with pytest.raises(HotstartError) as caught:
        write_diff(overlay.upper("one"), small / "rootfs.tar", skip_mounts=())
    assert caught.value.reason.code == "disk-full"
    assert os.listdir(small) == []


def test_a_sandbox_without_room(overlay: Overlay, tmp_path: Path) -> None:
    one = overlay.fresh("one")
    (one / "big").write_bytes(os.urandom(8 << 20))
    archive = overlay.home / "rootfs.tar"
    write_diff(overlay.upper("one"), archive, skip_mounts=())
    small = tmp_path / "small"
    small.mkdir()
    mount("tmpfs", str(small), "tmpfs", 0, "size=4m")
    overlay.mounted.append(small)
    with archive.open("rb") as tar, pytest.raises(HotstartError) as caught:
        apply_diff(tar, str(small))
    assert caught.value.reason.code == "disk-full"


def test_an_archive_is_never_overwritten(overlay: Overlay) -> None:
    overlay.fresh("one")
    archive = overlay.home / "rootfs.tar"
    archive.write_text("something")
    with pytest.raises(HotstartError, match=os.strerror(errno.EEXIST)):
        write_diff(overlay.upper("one"), archive, skip_mounts=())
    assert archive.read_text() == "something"
