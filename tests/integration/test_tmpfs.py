"""tmpfs contents travel from one mount namespace into another, with holes, shared inodes and hostile names."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotstart.errors import HotstartError
from hotstart.linux.syscalls import CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC, mount, setns, unshare
from hotstart.snapshot_agent.capture.tmpfs import write_tmpfs
from hotstart.snapshot_agent.restore.tmpfs import apply_tmpfs
from tests.trees import describe

pytestmark = pytest.mark.root


class Place:
    """A process in a mount namespace of its own, with a tmpfs at ``target``; ``do`` runs a function there."""

    def __init__(self, target: Path, size: str) -> None:
        self.target = target
        ready, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                unshare(CLONE_NEWNS)
                mount("", "/", "", MS_REC | MS_PRIVATE)
                mount("tmpfs", str(target), "tmpfs", 0, f"size={size},mode=1777")
                os.write(told, b"1")
                signal.pause()
            finally:
                os._exit(1)
        os.close(told)
        assert os.read(ready, 1) == b"1"
        os.close(ready)

    @property
    def root(self) -> Path:
        """As the agent reaches it from the host."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def outside(self) -> Path:
        """The mount as it is seen from the host."""
        return Path(f"{self.root}{self.target}")

    def do(self, action: Callable[[], object]) -> str:
        """Run ``action`` in the namespace, in a process of its own; returns the reason and the text of its failure."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                setns(os.open(f"/proc/{self.pid}/ns/mnt", os.O_RDONLY), CLONE_NEWNS)
                action()
                os._exit(0)
            except HotstartError as error:
                os.write(write, f"{error.reason.code} {error.detail}".encode())
            except BaseException as error:  # noqa: BLE001 - told to the test
                os.write(write, repr(error).encode())
            finally:
                os._exit(1)
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        _pid, status = os.waitpid(child, 0)
        assert bool(status) == bool(text)
        return text

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    made: list[Place] = []
    target = tmp_path / "shm"
    target.mkdir()

    def make(size: str = "300m") -> Place:
        made.append(Place(target, size))
        return made[-1]

    try:
        yield make
    finally:
        for place in made:
            place.close()


def fill(shm: Path) -> None:
    """What vLLM, glibc and CRIU leave in /dev/shm, and what a worker may add."""
    for name, size in (("psm_ring", 168 << 20), ("psm_ring2", 252 << 20)):
        with (shm / name).open("wb") as file:
            file.truncate(size)
            for offset in (0, 40 << 20, size - 100):
                file.seek(offset)
                file.write(os.urandom(100))
    (shm / "sem.mp-x1").write_bytes(bytes(32))
    os.link(shm / "sem.mp-x1", shm / "link_remap.7")
    (shm / "sem.mp-x1").chmod(0o600)
    (shm / "full").write_bytes(os.urandom(30 << 20))
    (shm / "dir").mkdir(mode=0o2770)
    (shm / "dir" / "inside").write_text("x")
    os.chown(shm / "dir" / "inside", 1000, 1000)
    os.setxattr(shm / "dir", "trusted.note", b"\0\1")
    os.mkfifo(shm / "fifo")
    (shm / "out").symlink_to("/etc/passwd")
    os.mknod(shm / "zero-zero", 0o020600, 0)
    os.utime(shm / "dir", ns=(5, 5))
    os.utime(shm, ns=(7, 123))


def test_contents_come_back(places: Callable[..., Place], tmp_path: Path) -> None:
    one, two = places(), places()
    fill(one.outside)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(one.outside / "socket"))
    os.utime(one.outside, ns=(7, 123))
    archive = tmp_path / "tmpfs-0.tar"
    copied = write_tmpfs(one.root, str(one.target), archive)
    server.close()
    assert copied.skipped == (b"socket",)
    assert copied.bytes == archive.stat().st_size < 31 << 20
    with archive.open("rb") as file:
        assert two.do(lambda: apply_tmpfs(file, str(two.target))) == ""
    before, after = describe(one.outside, skip=frozenset([b"socket"])), describe(two.outside)
    assert after == before
    assert os.stat(two.outside / "sem.mp-x1").st_ino == os.stat(two.outside / "link_remap.7").st_ino
    assert os.stat(two.outside / "psm_ring").st_blocks * 512 <= 3 * 4096


def test_what_is_there_is_replaced_or_stays(places: Callable[..., Place], tmp_path: Path) -> None:
    one, two = places(), places()
    (one.outside / "name").write_text("new")
    (one.outside / "dir").mkdir()
    archive = tmp_path / "tmpfs-0.tar"
    write_tmpfs(one.root, str(one.target), archive)
    (two.outside / "name").mkdir()
    (two.outside / "name" / "below").write_text("old")
    (two.outside / "dir").symlink_to(tmp_path)
    (two.outside / "other").write_text("stays")
    with archive.open("rb") as file:
        assert two.do(lambda: apply_tmpfs(file, str(two.target))) == ""
    assert sorted(os.listdir(two.outside)) == ["dir", "name", "other"]
    assert (two.outside / "name").read_text() == "new"
    assert not (two.outside / "dir").is_symlink()


def test_mounts_inside_are_left_out_and_left_alone(places: Callable[..., Place], tmp_path: Path) -> None:
    """As /run/hotstart/control on /run: a directory and a file bound from the host, one of the same file system."""
    one, two = places(), places()
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "order").write_text("the agent's")
    bindings = {"hotstart/control": tmp_path / "control", "file": tmp_path / "control" / "order"}
    for place in (one, two):
        (place.outside / "hotstart" / "control").mkdir(parents=True)
        (place.outside / "file").touch()
        (place.outside / "same").mkdir()

        def bind(target: Path = place.target) -> None:
            for name, source in bindings.items():
                mount(str(source), str(target / name), "", MS_BIND)
            mount(str(target), str(target / "same"), "", MS_BIND)

        assert place.do(bind) == ""
    (one.outside / "hotstart" / "note").write_text("n")
    archive = tmp_path / "tmpfs-0.tar"
    copied = write_tmpfs(one.root, str(one.target), archive)
    assert set(copied.skipped) == {b"hotstart/control", b"file", b"same"}
    with archive.open("rb") as file:
        assert two.do(lambda: apply_tmpfs(file, str(two.target))) == ""
    assert (two.outside / "hotstart" / "note").read_text() == "n"
    assert (tmp_path / "control" / "order").read_text() == "the agent's"


def test_skipped_paths(places: Callable[..., Place], tmp_path: Path) -> None:
    one = places()
    (one.outside / "a" / "b").mkdir(parents=True)
    (one.outside / "ab").mkdir()
    skip = [f"{one.target}/a", "/elsewhere/ab", str(one.target)]
    copied = write_tmpfs(one.root, str(one.target), tmp_path / "t.tar", skip=skip)
    assert copied.skipped == (b"a",)
    assert copied.entries == 2


def test_a_worker_cannot_lead_the_agent_away(places: Callable[..., Place], tmp_path: Path) -> None:
    """The mount point's path, swapped for a symlink by the worker, is not followed out of its root or inside it."""
    one = places()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("the host's")
    (one.outside / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(HotstartError) as caught:
        write_tmpfs(one.root, f"{one.target}/link", tmp_path / "t.tar")
    assert caught.value.reason.code == "tmpfs-copy-failed"
    assert not (tmp_path / "t.tar").exists()
    escape = f"{one.target}/../../../../../../..{tmp_path}/secret"
    root_fd = os.open(one.root, os.O_PATH)
    try:
        assert write_tmpfs(root_fd, escape, tmp_path / "u.tar").entries == 2  # its own root is the host's here
    finally:
        os.close(root_fd)


def test_a_missing_mount_is_told(places: Callable[..., Place], tmp_path: Path) -> None:
    one = places()
    archive = tmp_path / "tmpfs-0.tar"
    write_tmpfs(one.root, str(one.target), archive)
    (tmp_path / "plain").mkdir()
    with archive.open("rb") as file:
        assert one.do(lambda: apply_tmpfs(file, str(tmp_path / "plain"))).startswith("missing-mount ")
        assert one.do(lambda: apply_tmpfs(file, str(tmp_path / "none"))).startswith("tmpfs-apply-failed ")


def test_a_mount_that_is_too_small(places: Callable[..., Place], tmp_path: Path) -> None:
    one, two = places(), places("8m")
    (one.outside / "full").write_bytes(bytes(9 << 20))
    archive = tmp_path / "tmpfs-0.tar"
    write_tmpfs(one.root, str(one.target), archive)
    with archive.open("rb") as file:
        assert two.do(lambda: apply_tmpfs(file, str(two.target))).startswith("disk-full ")


def test_many_names_and_many_pieces(places: Callable[..., Place], tmp_path: Path) -> None:
    """More files than may be open at once, each big enough to wait for the parallel copy, and one in 5,000 pieces."""
    one, two = places(), places()
    for number in range(150):
        (one.outside / f"file{number}").write_bytes(os.urandom(140_000 + number))
    with (one.outside / "pieces").open("wb") as file:
        for number in range(5000):
            file.seek(number * 8192)
            file.write(number.to_bytes(4, "little") * 1024)
    archive = tmp_path / "tmpfs-0.tar"
    write_tmpfs(one.root, str(one.target), archive)
    with archive.open("rb") as file:
        assert two.do(lambda: apply_tmpfs(file, str(two.target))) == ""
    assert describe(two.outside) == describe(one.outside)


def test_other_programs_read_the_archive(places: Callable[..., Place], tmp_path: Path) -> None:
    """GNU tar extracts everything that it knows of, sparse files included."""
    one = places()
    fill(one.outside)
    (one.outside / "zero-zero").unlink()
    (one.outside / os.fsdecode(b"\xff" * 120)).write_text("name")
    os.utime(one.outside, ns=(7, 123))
    archive = tmp_path / "tmpfs-0.tar"
    write_tmpfs(one.root, str(one.target), archive)
    out = tmp_path / "out"
    out.mkdir()
    command = ["tar", "-xpf", archive, "--xattrs", "--xattrs-include=*", "--exclude=.hotstart-tree", "-C", out]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stderr == b""
    assert describe(out) == describe(one.outside)


def test_imports_are_light() -> None:
    """What the helper imports on a restore's critical path: none of the slow ones of the standard library."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import hotstart.snapshot_agent.restore.rootfs, hotstart.snapshot_agent.restore.tmpfs\n"
        "slow = {'dataclasses', 'inspect', 'typing', 're', 'json', 'tarfile', 'shutil', 'pathlib', 'threading'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(root)], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
