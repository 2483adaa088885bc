"""The restore's preflight against this machine: its own facts pass, and each thing that changed since is told."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from hotstart.snapshot_agent.catalog.manifest import Facts, FileIdentity, Manifest, SandboxEntry, VolumeEntry
from hotstart.snapshot_agent.preflight import checks
from hotstart.snapshot_agent.preflight.machine import machine
from tests.unit.catalog import samples

CRIU = "4.2.1"


@pytest.fixture
def snapshot(tmp_path: Path) -> Manifest:
    """A snapshot of a worker that has mapped two files, one of them on a volume; taken on this machine."""
    files = []
    for inside, place in (("/lib/libc.so", tmp_path / "root"), ("/models/weights", tmp_path / "volume")):
        path = place / Path(inside).relative_to("/models" if "models" in inside else "/")
        path.parent.mkdir(parents=True)
        path.write_bytes(inside.encode())
        status = path.stat()
        files.append(FileIdentity(path=inside, bytes=status.st_size, mtime_ns=status.st_mtime_ns))
    here = machine()
    facts = Facts(
        kernel=here.kernel,
        machine=here.machine,
        cpu_model=here.cpu_model,
        cpu_flags=sorted(here.cpu_flags),
        xsave_bytes=here.xsave_bytes,
        criu=CRIU,
        cgroup=here.cgroup,
        libc=here.libc,
        page_size=here.page_size,
        lsm=list(here.lsm),
        executable_memory=False,
        files=files,
    )
    sample = samples.manifest()
    sandbox: SandboxEntry = msgspec.structs.replace(
        sample.sandbox,
        rootfs=str(tmp_path / "root"),
        volumes=[VolumeEntry(source=str(tmp_path / "volume"), target="/models", read_only=True)],
    )
    return msgspec.structs.replace(sample, facts=facts, sandbox=sandbox)


def _told(manifest: Manifest, store: Path, criu: str = CRIU) -> list[tuple[str, bool]]:
    findings = checks.check_restore(manifest, store, criu=criu)
    return [(finding.reason.code, finding.fatal) for finding in findings]


def test_where_it_was_taken_it_fits(snapshot: Manifest, tmp_path: Path) -> None:
    assert _told(snapshot, tmp_path) == []


def test_an_upgraded_library_is_refused(snapshot: Manifest, tmp_path: Path) -> None:
    os.utime(tmp_path / "root/lib/libc.so", ns=(1, 1))
    assert _told(snapshot, tmp_path) == [("incompatible-rootfs", True)]


def test_a_library_that_became_a_link_is_refused(snapshot: Manifest, tmp_path: Path) -> None:
    """Followed, it would lead out of the root file system."""
    library = tmp_path / "root/lib/libc.so"
    library.rename(tmp_path / "elsewhere")
    library.symlink_to(tmp_path / "elsewhere")
    assert _told(snapshot, tmp_path) == [("incompatible-rootfs", True)]


def test_a_volume_that_is_gone_is_refused(snapshot: Manifest, tmp_path: Path) -> None:
    (tmp_path / "volume").rename(tmp_path / "moved")
    assert set(_told(snapshot, tmp_path)) == {("incompatible-rootfs", True), ("missing-mount", True)}


def test_an_older_criu_is_refused(snapshot: Manifest, tmp_path: Path) -> None:
    assert _told(snapshot, tmp_path, criu="4.1") == [("criu-unusable", True)]


def test_tile_registers_need_the_preload(snapshot: Manifest, tmp_path: Path) -> None:
    with_tiles = msgspec.structs.replace(snapshot, tiles=True)
    assert checks.check_restore(with_tiles, tmp_path, criu=CRIU) == []
    (finding,) = checks.check_restore(with_tiles, tmp_path, criu=CRIU, preload=False)
    assert finding.reason.code == "criu-unusable"
    assert checks.check_restore(snapshot, tmp_path, criu=CRIU, preload=False) == []


def test_copies_need_memory(snapshot: Manifest, tmp_path: Path) -> None:
    large = msgspec.structs.replace(snapshot.sizes, kv_released_bytes=1 << 50)
    assert _told(msgspec.structs.replace(snapshot, sizes=large), tmp_path) == [("memory-short", True)]


def test_a_thousand_files_are_looked_up(snapshot: Manifest, tmp_path: Path) -> None:
    names = []
    for number in range(1000):
        path = tmp_path / "root" / f"{number}.so"
        path.touch()
        names.append(FileIdentity(path=f"/{path.name}", bytes=0, mtime_ns=path.stat().st_mtime_ns))
    many = msgspec.structs.replace(snapshot, facts=msgspec.structs.replace(snapshot.facts, files=names))
    assert _told(many, tmp_path) == []
    (tmp_path / "root" / "500.so").write_bytes(b"changed")
    assert _told(many, tmp_path) == [("incompatible-rootfs", True)]
