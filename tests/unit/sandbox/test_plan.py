"""The steps that make a root file system, as values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotstart.linux.procfs import Mount
from hotstart.snapshot_agent.sandbox import plan
from hotstart.snapshot_agent.sandbox.cgroups import Hierarchy
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec, Volume

V2 = [Hierarchy(Path("/sys/fs/cgroup"), (), True)]
SOURCES = {"control": "/srv/h/c", "site": "/srv/h/s", "empty": "/srv/h/empty", "home": "/srv/h"}


def _mount(point: str, fstype: str = "ext4") -> Mount:
    return Mount(1, 0, "8:1", "/", point, frozenset({"rw"}), fstype, "dev", "rw")


def _steps(spec: SandboxSpec, host: list[Mount] | None = None, mounted: list[Hierarchy] | None = None) -> list[Any]:
    return plan.steps(spec, b"start", SOURCES, host or [], mounted or V2)


@pytest.mark.parametrize(
    ("rootfs", "path", "inside"),
    [
        ("/", "/", "/"),
        ("/", "/data/x", "/data/x"),
        ("/srv/image", "/srv/image", "/"),
        ("/srv/image", "/srv/image/data", "/data"),
        ("/srv/image", "/srv/image2", None),
        ("/srv/image", "/srv", None),
    ],
)
def test_where_a_path_of_the_host_is_inside(rootfs: str, path: str, inside: str | None) -> None:
    assert plan.inside(rootfs, path) == inside


def test_other_file_systems_of_the_host_are_seen_and_windows_into_the_kernel_are_not() -> None:
    host = [
        _mount("/"),
        _mount("/proc", "proc"),
        _mount("/data/deep"),
        _mount("/data"),
        _mount("/run/user/0", "tmpfs"),
        _mount("/tmp", "tmpfs"),
        _mount("/dev/shm", "tmpfs"),
        _mount("/mnt/ram", "tmpfs"),
        _mount("/var/lib/docker/overlay2/x/merged", "overlay"),
        _mount("/data"),
    ]
    assert plan.host_mounts("/", host) == [
        ("/data", "/data"),
        ("/data/deep", "/data/deep"),
        ("/mnt/ram", "/mnt/ram"),
    ]
    assert plan.host_mounts("/data", host) == [("/data/deep", "/deep")]


def test_the_home_is_covered_after_all_of_the_host_and_before_what_was_asked_for() -> None:
    spec = SandboxSpec("n", ("c",), tmpfs=("/b", "/a"), volumes=(Volume("/src", "/srv/h/in"),))
    steps = _steps(spec, [_mount("/"), _mount("/srv")])
    order = [steps.index(step) for step in steps if step[0] in ("cover", "bind") or step[1] in ("/a", "/b")]
    assert order == sorted(order)
    words = [step[:3] for step in steps]
    host, cover = words.index(("bind", "/srv", "/srv")), words.index(("cover", "/srv/h/empty", "/srv/h"))
    volume = words.index(("bind", "/src", "/srv/h/in"))
    assert host < cover < volume


def test_a_home_outside_of_the_root_file_system_needs_no_cover() -> None:
    assert not [step for step in _steps(SandboxSpec("n", ("c",), rootfs="/srv/image")) if step[0] == "cover"]


def test_volumes_are_read_only_unless_asked_otherwise() -> None:
    spec = SandboxSpec("n", ("c",), volumes=(Volume("/a", "/x"), Volume("/b", "/y", read_only=False)))
    binds = {step[1]: step[3:] for step in _steps(spec) if step[0] == "bind"}
    assert (binds["/a"], binds["/b"]) == ((True, True), (False, True))


def test_cgroups_look_as_on_the_host() -> None:
    unified = [step for step in _steps(SandboxSpec("n", ("c",))) if "cgroup" in str(step[1])]
    assert [step[1:3] for step in unified] == [("/sys/fs/cgroup", "cgroup2")]
    mounted = [
        Hierarchy(Path("/sys/fs/cgroup/cpu,cpuacct"), ("cpu", "cpuacct"), False),
        Hierarchy(Path("/sys/fs/cgroup/freezer"), ("freezer",), False),
        Hierarchy(Path("/sys/fs/cgroup/devices"), ("devices",), False),
        Hierarchy(Path("/sys/fs/cgroup/unified"), (), True),
    ]
    hybrid = [step for step in _steps(SandboxSpec("n", ("c",)), mounted=mounted) if step[0] == "mount"]
    assert {step[1]: (step[2], step[5]) for step in hybrid if "/cgroup/" in str(step[1])} == {
        "/sys/fs/cgroup/cpu,cpuacct": ("cgroup", "cpu,cpuacct"),
        "/sys/fs/cgroup/freezer": ("cgroup", "freezer"),
        "/sys/fs/cgroup/unified": ("cgroup2", ""),
    }


def test_steps_can_travel() -> None:
    import marshal

    steps = _steps(SandboxSpec("n", ("c",)), [_mount("/data")])
    assert marshal.loads(marshal.dumps(steps)) == steps
