"""Which cgroup hierarchies there are, and where a sandbox is in them, as values."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotstart.errors import HotstartError
from hotstart.linux.procfs import parse_mountinfo
from hotstart.reasons import CGROUP_UNUSABLE
from hotstart.snapshot_agent.sandbox.cgroups import Hierarchy, hierarchies, mode, name_of, usable

HYBRID = b"""\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
PURE = b"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def _points(found: list[Hierarchy]) -> list[str]:
    return [hierarchy.point.name for hierarchy in found]


def test_hybrid() -> None:
    found = hierarchies(parse_mountinfo(HYBRID))
    assert _points(found) == ["cpu,cpuacct", "freezer", "blkio", "systemd", "unified"]
    assert found[0].controllers == ("cpu", "cpuacct")
    assert found[3].controllers == ("name=systemd",)
    assert _points(usable(found)) == ["cpu,cpuacct", "freezer", "unified"]
    assert mode(found) == "hybrid"


def test_pure_v2() -> None:
    found = hierarchies(parse_mountinfo(PURE))
    assert found == [Hierarchy(Path("/sys/fs/cgroup"), (), True)]
    assert usable(found) == found
    assert mode(found) == "v2"


def test_systemds_own_v1_hierarchy_does_not_make_a_machine_hybrid() -> None:
    lines = [line for line in HYBRID.splitlines(keepends=True) if b"systemd" in line or b"cgroup2" in line]
    assert mode(hierarchies(parse_mountinfo(b"".join(lines)))) == "v2"


def test_v1_without_freezer_is_refused() -> None:
    lines = [line for line in HYBRID.splitlines(keepends=True) if b"freezer" not in line and b"cgroup2" not in line]
    found = hierarchies(parse_mountinfo(b"".join(lines)))
    assert mode(found) == "v1"
    with pytest.raises(HotstartError) as caught:
        usable(found)
    assert caught.value.reason is CGROUP_UNUSABLE


def test_a_hierarchy_that_is_mounted_twice_counts_once() -> None:
    assert len(hierarchies(parse_mountinfo(PURE + PURE.replace(b"/sys/fs/cgroup ", b"/mnt/other ")))) == 1


def test_one_name_in_two_homes_is_two_cgroups() -> None:
    assert name_of(Path("/a"), "n") != name_of(Path("/b"), "n")
    assert name_of(Path("/a"), "n").startswith("n.")
