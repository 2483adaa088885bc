"""Nothing of a sandbox is left on the machine, however it, its maker or its shim ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import msgspec
import pytest

from hotstart.errors import HotstartError
from hotstart.linux.process import start_time
from hotstart.linux.syscalls import MNT_DETACH, mount, umount
from hotstart.reasons import DISK_FULL, SANDBOX_START
from hotstart.snapshot_agent.sandbox import cgroups, local, state, view
from hotstart.snapshot_agent.sandbox.local import LocalSandbox
from tests.conftest import Sandboxes, eventually, traces

pytestmark = pytest.mark.root
MAKER = """
import sys
from pathlib import Path
from hotstart.snapshot_agent.sandbox import local
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec
print("go", flush=True)
spec = SandboxSpec(sys.argv[2], ("sleep", "1000"), {"PATH": "/bin"})
local.create(Path(sys.argv[1]), spec, placeholder=True)
print("made", flush=True)
"""


def _links() -> set[str]:
    return {name for _index, name in socket.if_nameindex()}


def _rewrite_live(box: LocalSandbox, **change: object) -> None:
    assert box.live is not None
    fields = msgspec.structs.asdict(box.live) | change
    (box.directory / "live.json").write_bytes(msgspec.json.encode(fields))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_maker_that_is_killed_midway(sandboxes: Sandboxes, how: signal.Signals) -> None:
    """At every moment of the making: afterwards the sandbox is there and can be removed, or it is not there."""
    for step in range(14):
        spec = sandboxes.spec("sleep", "1000")
        with subprocess.Popen(
            [sys.executable, "-c", MAKER, str(sandboxes.home), spec.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as maker:
            assert maker.stdout is not None
            maker.stdout.readline()
            time.sleep(step * 0.004)
            maker.send_signal(how)
            made = "made" in maker.communicate()[0].decode()  # an interrupt after that finds a sandbox to keep
        if how == signal.SIGINT and maker.returncode != 0 and not made:
            assert traces(sandboxes.home) == []
        local.destroy(sandboxes.home, spec.name, grace_s=0)
        assert traces(sandboxes.home) == []


def test_a_full_disk(sandboxes: Sandboxes) -> None:
    sandboxes.home.mkdir()
    mount("tmpfs", str(sandboxes.home), "tmpfs", data="size=96k")
    try:
        with pytest.raises(HotstartError) as caught:
            sandboxes.placeholder("sleep", "1")
        assert caught.value.reason is DISK_FULL
        assert traces(sandboxes.home) == []
    finally:
        umount(str(sandboxes.home), MNT_DETACH)


def test_a_home_that_is_a_file(sandboxes: Sandboxes) -> None:
    sandboxes.home.write_text("")
    with pytest.raises(HotstartError) as caught:
        sandboxes.placeholder("sleep", "1")
    assert caught.value.reason is SANDBOX_START
    sandboxes.home.unlink()


def test_pid_1_and_shim_were_killed(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000")
    assert box.live is not None
    os.kill(box.live.shim_pid, signal.SIGKILL)
    os.kill(box.init_pid, signal.SIGKILL)
    eventually(lambda: not box.lives())
    assert box.state() == "exited"
    assert local.destroy(sandboxes.home, box.name) is None


def test_a_frozen_sandbox_can_be_removed(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000")
    sandboxes.started(box, 2)
    freezer = view.freezer_dir(box.init_pid)
    if (freezer / "freezer.state").exists():
        (freezer / "freezer.state").write_text("FROZEN")
    else:
        (freezer / "cgroup.freeze").write_text("1")
    assert local.destroy(sandboxes.home, box.name, grace_s=5) == 143


def test_a_shim_that_hangs(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000")
    assert box.live is not None
    os.kill(box.live.shim_pid, signal.SIGSTOP)
    assert local.destroy(sandboxes.home, box.name) is None


def test_what_a_crashed_helper_left_in_the_cgroup_is_killed(sandboxes: Sandboxes) -> None:
    box = sandboxes.placeholder("sleep", "1")
    with subprocess.Popen(["sleep", "1000"]) as helper:
        for path in cgroups.directories(cgroups.name_of(sandboxes.home, box.name)):
            (path / "cgroup.procs").write_text(str(helper.pid))
        local.destroy(sandboxes.home, box.name)
        assert helper.wait(5) == -signal.SIGKILL


def test_a_pid_that_was_taken_by_somebody_else_is_not_touched(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000")
    assert box.live is not None
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        try:
            _rewrite_live(box, init_pid=stranger.pid, init_start=start_time(stranger.pid) + 1)
            changed = sandboxes.load(box)
            assert not changed.lives()
            os.kill(box.init_pid, signal.SIGKILL)
            local.destroy(sandboxes.home, box.name)
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_sandbox_of_another_boot_is_dead(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000")
    before = box.live
    assert before is not None
    _rewrite_live(box, boot="0" * 8)
    assert not sandboxes.load(box).lives()
    os.kill(before.init_pid, signal.SIGKILL)
    eventually(lambda: not before.lives())
    local.destroy(sandboxes.home, box.name)


def test_a_link_that_belongs_to_another_by_now_stays(sandboxes: Sandboxes) -> None:
    box, other = sandboxes.placeholder("sleep", "1"), sandboxes.placeholder("sleep", "1")
    assert box.live is not None
    assert other.live is not None
    own = box.live.link
    _rewrite_live(box, link=other.live.link)
    local.destroy(sandboxes.home, box.name)
    assert other.live.link in _links()
    eventually(lambda: own not in _links())  # with its network namespace


def test_a_making_that_broke_off_before_anything_ran(sandboxes: Sandboxes) -> None:
    where = state.directory(sandboxes.home, "broken")
    where.mkdir(parents=True)
    (where / "upper").mkdir()
    assert list(local.unreadable(sandboxes.home)) == ["broken"]
    assert local.list_all(sandboxes.home) == []
    local.destroy(sandboxes.home, "broken")
    assert local.unreadable(sandboxes.home) == {}


def test_damaged_files_do_not_stand_in_the_way(sandboxes: Sandboxes) -> None:
    box = sandboxes.placeholder("sleep", "1")
    (box.directory / "sandbox.json").write_text("{")
    assert list(local.unreadable(sandboxes.home)) == [box.name]
    local.destroy(sandboxes.home, box.name)
    assert traces(sandboxes.home) == []


def test_symlinks_in_the_upper_directory_are_not_followed(
    sandboxes: Sandboxes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    victim = tmp_path_factory.mktemp("victim")
    (victim / "file").write_text("x")
    box = sandboxes.shell(f"ln -s {victim} /escape; chattr +i /escape 2>/dev/null; exit 0")
    sandboxes.wait(box)
    local.destroy(sandboxes.home, box.name)
    assert (victim / "file").read_text() == "x"


def test_links_are_gone_at_once(sandboxes: Sandboxes) -> None:
    boxes = [sandboxes.placeholder("sleep", "1") for _ in range(3)]
    ours = {(box.live.link_index, box.live.link) for box in boxes if box.live is not None}
    assert len(ours & set(socket.if_nameindex())) == 3
    for box in boxes:
        local.destroy(sandboxes.home, box.name)
    assert not ours & set(socket.if_nameindex())
