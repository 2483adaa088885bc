"""Facts out of mounts and cgroups, as values; tests/integration has them of live sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotstart.errors import HotstartError
from hotstart.linux.procfs import parse_mountinfo
from hotstart.reasons import SANDBOX_DEAD
from hotstart.snapshot_agent.sandbox import view

SANDBOX = rb"""
66 42 0:40 / / rw,relatime - overlay overlay rw,lowerdir=/,upperdir=/h/my\040box/upper,workdir=/h/work
67 66 0:42 / /proc rw - proc proc rw
74 73 0:44 / /sys/fs/cgroup rw - tmpfs cgroup rw
81 66 0:45 / /dev rw - tmpfs dev rw
83 81 0:47 / /dev/shm rw - tmpfs shm rw
84 67 0:45 /null /proc/keys rw - tmpfs dev rw
86 66 0:48 / /run rw - tmpfs run rw
87 86 0:60 / /run/hotstart/control rw - tmpfs t rw
91 66 0:48 /hotstart/hosts /etc/hosts rw - tmpfs run rw
92 66 0:50 / /tmp rw - tmpfs t rw
93 66 0:51 / /volume rw - tmpfs host rw
94 66 0:52 / /frozen ro - tmpfs t rw
95 66 0:53 / /twice rw - tmpfs t rw
96 95 8:1 / /twice rw - ext4 /dev/sda rw
""".lstrip()
HOST = b"1 0 0:51 / /mnt/ram rw - tmpfs host rw\n"


def test_tmpfs_that_travel() -> None:
    assert view.own_tmpfs(parse_mountinfo(SANDBOX), parse_mountinfo(HOST)) == ["/dev/shm", "/run", "/tmp"]


def test_the_upper_directory() -> None:
    assert view.upperdir_of(parse_mountinfo(SANDBOX)) == Path("/h/my box/upper")
    assert view.upperdir_of(parse_mountinfo(b"1 0 8:1 / / rw - ext4 /dev/sda rw\n")) is None
    covered = SANDBOX + b"99 66 8:1 / / rw - ext4 /dev/sda rw\n"
    assert view.upperdir_of(parse_mountinfo(covered)) is None


@pytest.mark.parametrize(
    "fact",
    [view.cgroup_dirs, view.freezer_dir, view.upperdir, view.tmpfs_mounts, view.root_task, view.tree, view.stdio],
)
def test_a_sandbox_that_is_gone(fact: object) -> None:
    assert callable(fact)
    with pytest.raises(HotstartError) as caught:
        fact(0)
    assert caught.value.reason is SANDBOX_DEAD
