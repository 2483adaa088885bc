"""Edits of CRIU's images: what is changed, and that everything else survives."""

import pytest

from hotstart.errors import HotstartError
from hotstart.snapshot_agent.capture import skeleton
from hotstart.snapshot_agent.criu import images_pb2 as pb


def test_an_anonymous_range_becomes_a_private_mapping() -> None:
    vma = pb.Vma(start=0x1000, end=0x3000, pgoff=0, shmid=0, prot=3, flags=0x4022, status=0x221, fd=-1, madv=1 << 14)
    skeleton.map_range(vma, 77, 1 << 30)
    assert (vma.status, vma.flags, vma.shmid, vma.pgoff) == (0x41, 0x4002, 77, 1 << 30)
    assert (vma.start, vma.end, vma.prot, vma.madv, vma.fd) == (0x1000, 0x3000, 3, 1 << 14, -1)


def test_one_file_id_per_process_all_with_one_name() -> None:
    files = [pb.FileEntry(type=1, id=5, reg=pb.RegFile(id=5, name="/bin/sh", mnt_id=42)), pb.FileEntry(type=2, id=9)]
    entries = skeleton.memory_file_entries(files, 3, 1 << 40)
    assert [e.id for e in entries] == [10, 11, 12]
    assert {e.reg.name for e in entries} == {"/hotstart-memory"}
    assert {(e.reg.size, e.reg.mode, e.reg.mnt_id) for e in entries} == {(1 << 40, 0o100600, 42)}


def test_no_regular_file_at_all_is_refused() -> None:
    with pytest.raises(HotstartError):
        skeleton.memory_file_entries([pb.FileEntry(type=2, id=9)], 1, 0)


def _with_filter(index: int) -> pb.Core:
    core = pb.Core()
    core.thread_core.seccomp_mode, core.thread_core.seccomp_filter = 2, index
    return core


def test_threads_with_filters_of_their_own_get_an_entry_each() -> None:
    seccomp = pb.Seccomp(seccomp_filters=[pb.SeccompFilter(filter=b"old", flags=0)])
    leader, bare, also = _with_filter(0), pb.Core(), _with_filter(0)
    skeleton.add_filter(seccomp, leader, [bare, also], b"new")
    assert len(seccomp.seccomp_filters) == 3  # one copy per distinct predecessor
    assert {f.flags for f in seccomp.seccomp_filters[1:]} == {0}
    assert skeleton.filter_chain(seccomp, bare) == [b"new"]
    assert skeleton.filter_chain(seccomp, leader) == [b"new", b"old"]
    assert skeleton.filter_chain(seccomp, also) == [b"new", b"old"]


def test_equal_filters_stay_synchronised_through_the_leader() -> None:
    seccomp = pb.Seccomp(seccomp_filters=[pb.SeccompFilter(filter=b"old", flags=1)])
    leader, other = _with_filter(0), pb.Core()
    skeleton.add_filter(seccomp, leader, [other], b"new")
    assert skeleton.filter_chain(seccomp, leader) == [b"new", b"old"]
    assert seccomp.seccomp_filters[1].flags == 1
    assert other.thread_core.seccomp_mode == 0  # gets it from the leader's synchronisation


def test_threads_without_any_filter_share_one_entry() -> None:
    seccomp = pb.Seccomp()
    leader, other = pb.Core(), pb.Core()
    skeleton.add_filter(seccomp, leader, [other], b"new")
    assert [(f.filter, f.flags, f.HasField("prev")) for f in seccomp.seccomp_filters] == [(b"new", 1, False)]
    assert other.thread_core.seccomp_mode == 0


def test_a_filter_that_refers_to_nothing_is_refused() -> None:
    core = pb.Core()
    core.thread_core.seccomp_mode, core.thread_core.seccomp_filter = 2, 3
    with pytest.raises(HotstartError):
        skeleton.filter_chain(pb.Seccomp(), core)


def test_unknown_fields_survive_an_edit() -> None:
    raw = pb.Vma(start=1, end=2, status=0x221, flags=0x22).SerializeToString() + b"\xf8\x07\x2a"  # field 127: 42
    vma = pb.Vma()
    vma.ParseFromString(raw)
    skeleton.map_range(vma, 3, 4096)
    assert vma.SerializeToString().endswith(b"\xf8\x07\x2a")


def test_a_periodic_timer_with_an_unread_tick_ticks_on() -> None:
    stuck = pb.FileEntry(type=17, id=1, tfd=pb.Timerfd(ticks=1, vsec=0, vnsec=0, isec=0, insec=50_000_000))
    running = pb.FileEntry(type=17, id=2, tfd=pb.Timerfd(vsec=0, vnsec=7, isec=1, insec=0))
    single = pb.FileEntry(type=17, id=3, tfd=pb.Timerfd(ticks=1, vsec=0, vnsec=0, isec=0, insec=0))
    disarmed = pb.FileEntry(type=17, id=5, tfd=pb.Timerfd(ticks=0, vsec=0, vnsec=0, isec=1, insec=0))
    assert skeleton.rearm_timers([stuck, running, single, disarmed, pb.FileEntry(type=1, id=4)]) == 1
    assert [(e.tfd.vsec, e.tfd.vnsec) for e in (stuck, running, single, disarmed)] == [
        (0, 50_000_000),
        (0, 7),
        (0, 0),
        (0, 0),
    ]
