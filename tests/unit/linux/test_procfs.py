"""Parsers of /proc, on the oddest lines there are, and on this very process."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest

from hotstart.linux import process, procfs

ODD = rb"36 35 98:0 /mnt\0401 /mnt\0112\134x rw,noatime master:1 propagate_from:2 - ext3 /dev/root\040x rw,errors=panic"


def test_mountinfo() -> None:
    mount = procfs.parse_mountinfo(ODD)[0]
    assert mount == procfs.Mount(
        36,
        35,
        "98:0",
        "/mnt 1",
        "/mnt\t2\\x",
        frozenset({"rw", "noatime"}),
        "ext3",
        "/dev/root x",
        "rw,errors=panic",
    )
    assert procfs.mountinfo("self")[0].point


def test_stat_of_a_process_whose_name_is_a_trap() -> None:
    stat = procfs.parse_stat(b"42 (a) R 1 (b)) S 7 42 43 " + b"0 " * 15 + b"1234 0 0\n")
    assert stat == procfs.Stat(42, "a) R 1 (b)", "S", 7, 43, 1234)
    me = procfs.stat("self")
    assert (me.pid, me.parent, me.start) == (os.getpid(), os.getppid(), process.start_time(os.getpid()))


def test_status_cgroup_and_rollup_of_this_process() -> None:
    status = procfs.status("self")
    assert status.uids == (os.getuid(), os.geteuid(), os.geteuid(), os.geteuid())
    assert status.parent == os.getppid()
    assert status.ns_pids[0] == os.getpid()
    sizes = procfs.rollup("self")
    assert 0 < sizes["Pss_Anon"] <= sizes["Pss"] <= sizes["Rss"]
    assert procfs.parse_cgroup(b"4:cpu,cpuacct:/a\n1:name=x:/\n0::/b:c\n") == [
        procfs.CgroupEntry(("cpu", "cpuacct"), "/a"),
        procfs.CgroupEntry(("name=x",), "/"),
        procfs.CgroupEntry((), "/b:c"),
    ]


def test_children_of_every_thread() -> None:
    started: list[subprocess.Popen[bytes]] = []
    gone = threading.Event()

    def start() -> None:
        started.append(subprocess.Popen(["sleep", "100"]))
        gone.wait()

    thread = threading.Thread(target=start)
    thread.start()
    try:
        while not started:
            pass
        assert started[0].pid in procfs.children(os.getpid())
    finally:
        gone.set()
        thread.join()
        started[0].kill()
        started[0].wait()


def test_identity() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        start = process.start_time(child.pid)
        assert process.alive(child.pid, start)
        assert not process.alive(child.pid, start + 1)
        os.close(process.open_pidfd(child.pid, start))
        with pytest.raises(ProcessLookupError):
            process.open_pidfd(child.pid, start + 1)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not process.alive(child.pid, start)  # a zombie
    with pytest.raises(ProcessLookupError):
        process.start_time(child.pid)
    assert procfs.rollup("self")
