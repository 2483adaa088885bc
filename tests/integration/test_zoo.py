"""The workload zoo through capture and restore: what was held before is held after, byte by byte, or it is refused."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotstart.errors import HotstartError
from hotstart.snapshot_agent import api
from hotstart.snapshot_agent.sandbox import local
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec
from tests.conftest import traces
from tests.integration.live import Live, needs_criu
from tests.workloads import rootfs, zoo
from tests.workloads.zoo import Workload

pytestmark = [pytest.mark.root, pytest.mark.criu, pytest.mark.timeout(240), needs_criu]
ON_TMPFS = ("rootfs", "everything")
"""They keep files in /tmp too, which must be a tmpfs for them."""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """A home of its own."""
    one = Live(tmp_path / "home")
    yield one
    one.close()
    assert traces(one.home) == []


@pytest.fixture
def directory() -> Iterator[Path]:
    """A working directory on the host's root file system: sandboxes see it below their overlay."""
    path = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="hotstart-zoo-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def _start(live: Live, workload: Workload, directory: Path, uid: int = 0) -> str:
    if lack := zoo.missing(workload):
        pytest.skip(f"this machine has no {lack}")
    zoo.prepare(workload, directory)
    if uid:
        for path in (directory, *directory.rglob("*")):
            os.chown(path, uid, uid, follow_symlinks=False)
    spec = SandboxSpec(
        live.fresh("z"),
        zoo.command(workload),
        env=zoo.environment(workload),
        cwd=str(directory),
        engine="none",
        uid=uid,
        gid=uid,
        tmpfs=("/tmp",) if workload.name in ON_TMPFS else (),
    )
    api.run(live.home, spec)
    _wait_for(live, spec.name, {zoo.READY}, workload.seconds)
    return spec.name


def _wait_for(live: Live, name: str, words: set[str], seconds: float) -> list[str]:
    """Wait until the program says one of ``words``, or BAD; returns its lines."""
    until = time.monotonic() + seconds
    while True:
        lines = live.log(name).splitlines()
        if words & set(lines) or any(line.startswith("BAD") for line in lines):
            return lines
        assert time.monotonic() < until, f"{name} said only {lines[-20:]}"
        time.sleep(0.03)


def _go(live: Live, name: str, directory: Path, workload: Workload) -> None:
    """Let the program check itself, inside the sandbox."""
    (_inside(live, name, directory) / zoo.GO).touch()
    lines = _wait_for(live, name, {"OK"}, workload.seconds)
    assert [line for line in lines if line.startswith("BAD")] == []
    assert "OK" in lines


def _inside(live: Live, name: str, directory: Path) -> Path:
    root = Path(f"/proc/{local.load(live.home, name).init_pid}/root")
    return root / str(directory).lstrip("/")


@pytest.mark.parametrize("workload", [*zoo.CAPTURED, zoo.EVERYTHING], ids=lambda workload: workload.name)
def test_what_it_held_is_there_after_a_mapped_restore(live: Live, directory: Path, workload: Workload) -> None:
    source = _start(live, workload, directory)
    snapshot = live.capture(source, stop_source=True, timeout_s=120)
    (copy,) = live.restore(snapshot.name, timeout_s=120)
    assert {v.mode for v in snapshot.manifest.verdicts} == {"mapped"}
    assert sum(v.mapped_bytes for v in snapshot.manifest.verdicts) > 0
    if workload.name == "rootfs":
        inside = _inside(live, copy.name, directory)
        assert rootfs.differences(inside, Path(f"/proc/{local.load(live.home, copy.name).init_pid}/root")) == []
    _go(live, copy.name, directory, workload)
    assert api.verify_snapshot(live.home, snapshot.name) == []  # the memory file was not written to


@pytest.mark.parametrize("name", ["forks", "shared", "ranges", "jemalloc", "goheap"])
def test_what_it_held_is_there_after_a_copied_restore(live: Live, directory: Path, name: str) -> None:
    workload = zoo.BY_NAME[name]
    source = _start(live, workload, directory)
    snapshot = live.capture(source, stop_source=True, timeout_s=120)
    (copy,) = live.restore(snapshot.name, force_copy=True, timeout_s=120)
    assert {v["mode"] for v in copy.verdicts} == {"copied"}
    _go(live, copy.name, directory, workload)


@pytest.mark.parametrize("name", ["threads", "files", "rootfs", "attributes"])
def test_a_user_that_is_not_root(live: Live, directory: Path, name: str) -> None:
    workload = zoo.BY_NAME[name]
    source = _start(live, workload, directory, uid=1000)
    snapshot = live.capture(source, stop_source=True, timeout_s=120)
    (copy,) = live.restore(snapshot.name, timeout_s=120)
    _go(live, copy.name, directory, workload)


@pytest.mark.parametrize("name", ["forks", "channels", "mutator"])
def test_the_source_holds_it_too_and_runs_on(live: Live, directory: Path, name: str) -> None:
    workload = zoo.BY_NAME[name]
    source = _start(live, workload, directory)
    live.capture(source, timeout_s=120)
    _go(live, source, directory, workload)


@pytest.mark.parametrize("name", ["semantics", "goheap"])
def test_two_copies_never_see_each_others_writes(live: Live, directory: Path, name: str) -> None:
    workload = zoo.BY_NAME[name]
    source = _start(live, workload, directory)
    snapshot = live.capture(source, stop_source=True, timeout_s=120)
    copies = live.restore(snapshot.name, copies=2, timeout_s=120)
    for copy in copies:
        (_inside(live, copy.name, directory) / zoo.GO).touch()
    for copy in copies:
        lines = _wait_for(live, copy.name, {"OK"}, workload.seconds)
        assert "OK" in lines
    assert api.verify_snapshot(live.home, snapshot.name) == []


@pytest.mark.parametrize(
    "workload",
    [w for w in zoo.REFUSED if not w.prevented and w.name not in ("outside-tcp", "uts-namespace", "net-namespace")],
    ids=lambda workload: workload.name,
)
def test_what_cannot_be_captured_is_refused_before_it_is_disturbed(
    live: Live, directory: Path, workload: Workload
) -> None:
    source = _start(live, workload, directory)
    before = live.traces_of_captures(source)
    found = {finding.reason.code for finding in api.preflight(live.home, sandbox=source) if finding.fatal}
    assert workload.refused in found
    with pytest.raises(HotstartError) as caught:
        live.capture(source)
    assert caught.value.reason.code in found
    assert live.traces_of_captures(source) == before
    assert api.snapshots(live.home) == []
    _go(live, source, directory, workload)
