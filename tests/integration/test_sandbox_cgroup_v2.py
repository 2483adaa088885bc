"""The same on a machine that shows cgroup v2 alone: in a mount namespace where nothing else is mounted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import traces

pytestmark = pytest.mark.root

SCRIPT = """
import os, sys, time
from pathlib import Path
from hotstart.linux import procfs
from hotstart.linux.syscalls import CLONE_NEWNS, MNT_DETACH, MS_PRIVATE, MS_REC, mount, umount, unshare
from hotstart.snapshot_agent.sandbox import cgroups, local, probe, view
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec

unshare(CLONE_NEWNS)
mount("", "/", flags=MS_REC | MS_PRIVATE)
umount("/sys/fs/cgroup", MNT_DETACH)
mount("cgroup2", "/sys/fs/cgroup", "cgroup2")
home = Path(sys.argv[1])
mounted = cgroups.hierarchies(procfs.mountinfo("self"))
assert cgroups.mode(mounted) == "v2", mounted
assert [p for p in probe.probe(home) if p.reason is not None] == []

script = "cat /proc/self/cgroup; ls /sys/fs/cgroup/cgroup.procs; i=0; while :; do echo tick; sleep 0.01; done"
box = local.create(home, SandboxSpec("v2", ("/bin/sh", "-c", script), {"PATH": "/bin"}), placeholder=False)
until = time.monotonic() + 20
while "tick" not in box.log_path.read_text():
    assert time.monotonic() < until
    time.sleep(0.01)
log = box.log_path.read_text().splitlines()
assert "0::/" in log, log
assert "/sys/fs/cgroup/cgroup.procs" in log, log
freezer = view.freezer_dir(box.init_pid)
assert view.cgroup_dirs(box.init_pid) == [freezer], view.cgroup_dirs(box.init_pid)
assert sorted(int(w) for w in (freezer / "cgroup.procs").read_text().split()) == sorted(view.members(box.init_pid))
(freezer / "cgroup.freeze").write_text("1")
while "frozen 1" not in (freezer / "cgroup.events").read_text():
    assert time.monotonic() < until
    time.sleep(0.01)
size = box.log_path.stat().st_size
time.sleep(0.1)
assert box.log_path.stat().st_size == size
assert local.destroy(home, "v2", 5) == 143
assert not freezer.exists()
print("good")
"""


def test_made_frozen_and_removed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(home)], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.stdout == "good\n", done.stderr
    assert traces(home) == []
