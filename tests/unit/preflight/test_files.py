"""Which files a worker has from outside its snapshot, and whether they are the same: on real processes and trees."""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hotstart.snapshot_agent.catalog.manifest import FileIdentity
from hotstart.snapshot_agent.preflight import files
from hotstart.snapshot_agent.preflight.files import Place

MAPS = b"""55d0c0a00000-55d0c0a21000 r-xp 00000000 fe:00 1234                       /usr/bin/python3.11
55d0c1000000-55d0c1021000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
7f0000100000-7f0000121000 r--p 00000000 fe:00 77                         /srv/name with spaces.so
7f0000200000-7f0000221000 rw-s 00000000 00:01 9                          /memfd:ring (deleted)
7f0000300000-7f0000321000 r--p 00000000 fe:00 78                         /gone.so (deleted)
7f0000400000-7f0000421000 rw-s 00000000 00:01 0                          /SYSV00000000
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
7ffc00100000-7ffc00102000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
"""


def test_maps() -> None:
    found = files.parse_maps(MAPS)
    assert found.paths == {"/usr/bin/python3.11", "/srv/name with spaces.so"}
    assert not found.anonymous_executable


@pytest.mark.parametrize(
    "line",
    [
        b"7f0000500000-7f0000521000 rwxp 00000000 00:00 0",
        b"7f0000500000-7f0000521000 r-xp 00000000 00:00 0                          [anon:jit]",
        b"7f0000500000-7f0000521000 rwxp 00000000 00:00 0                          [heap]",
    ],
)
def test_a_jit_is_seen(line: bytes) -> None:
    assert files.parse_maps(MAPS + line + b"\n").anonymous_executable


def test_this_process() -> None:
    found = files.mapped([os.getpid()])
    assert os.path.realpath(sys.executable) in found.paths
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE):
        assert files.mapped([os.getpid()]).anonymous_executable


def test_open_files_are_regular_and_named(tmp_path: Path) -> None:
    kept, removed = tmp_path / "kept", tmp_path / "removed"
    left, right = socket.socketpair()
    with kept.open("w"), removed.open("w"), open(os.devnull), left, right:
        removed.unlink()
        found = files.opened([os.getpid()])
    assert str(kept) in found
    assert not any("removed" in path or path == os.devnull for path in found)


def test_a_process_that_is_gone_has_nothing() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert files.mapped([child.pid]).paths == frozenset()
    assert files.opened([child.pid]) == frozenset()


def test_the_innermost_place_holds_a_path() -> None:
    places = [
        Place("/", "/lower"),
        Place("/models", "/srv/m"),
        Place("/models/tiny", "/srv/t"),
        Place("/etc/one", "/f"),
    ]
    assert files.place_of("/usr/x", places) == (places[0], "usr/x")
    assert files.place_of("/models/a/b", places) == (places[1], "a/b")
    assert files.place_of("/models/tiny/a", places) == (places[2], "a")
    assert files.place_of("/models-other/a", places) == (places[0], "models-other/a")
    assert files.place_of("/etc/one", places) == (places[3], "")
    assert files.place_of("/x", [Place("/models", "/srv/m")]) is None


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("lower/lib/a.so", "lower/lib/b.so", "volume/model", "outside/secret"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, ns=(1, 1_000_000_007))
    return tmp_path


def test_identities(tree: Path) -> None:
    places = [Place("/", f"{tree}/lower"), Place("/models", f"{tree}/volume"), Place("/one", f"{tree}/lower/lib/a.so")]
    found = files.identities(["/lib/b.so", "/lib/a.so", "/models/model", "/lib", "/lib/none", "/one"], places)
    assert [(file.path, file.bytes) for file in found] == [
        ("/lib/a.so", 14),
        ("/lib/b.so", 14),
        ("/models/model", 12),
        ("/one", 14),
    ]
    assert found[0] == FileIdentity(path="/lib/a.so", bytes=14, mtime_ns=1_000_000_007)


@pytest.mark.parametrize("path", ["/lib/link", "/linked/secret", "/lib/../../outside/secret", "/../outside/secret"])
def test_a_path_cannot_leave_its_place(tree: Path, path: str) -> None:
    (tree / "lower/lib/link").symlink_to(tree / "outside/secret")
    (tree / "lower/linked").symlink_to(tree / "outside")
    assert files.identities([path], [Place("/", f"{tree}/lower")]) == []


def test_what_a_snapshot_carries_is_no_fact(tree: Path) -> None:
    upper = tree / "upper"
    (upper / "lib").mkdir(parents=True)
    shutil.copy(tree / "lower/lib/a.so", upper / "lib/a.so")
    paths = ["/lib/a.so", "/lib/b.so", "/dev/shm/ring", "/tmp/x", "/tmpfoo"]
    assert files.not_carried(paths, upper, ["/dev/shm", "/tmp"]) == {"/lib/b.so", "/tmpfoo"}
    assert files.not_carried(paths, None, []) == set(paths)


def test_descriptors_are_closed(tree: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    files.identities([f"/lib/{n}" for n in range(50)] + ["/lib/a.so"], [Place("/", f"{tree}/lower")])
    files.not_carried(["/lib/a.so"], tree, [])
    assert len(os.listdir("/proc/self/fd")) == before
