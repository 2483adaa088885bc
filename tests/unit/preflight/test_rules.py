"""Rules of preflight on synthetic facts: each way to be wrong is found, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hotstart import reasons
from hotstart.reasons import Reason
from hotstart.snapshot_agent.catalog.manifest import Facts, FileIdentity, Sizes, Verdict
from hotstart.snapshot_agent.preflight import rules
from hotstart.snapshot_agent.preflight.machine import Room
from hotstart.snapshot_agent.preflight.worker import Content, Named, Worker

GIB = 1 << 30
LIBC = FileIdentity(path="/usr/lib/libc.so.6", bytes=1_900_000, mtime_ns=17)
TORCH = FileIdentity(path="/opt/venv/libtorch_cpu.so", bytes=400_000_000, mtime_ns=23)

HERE = Facts(
    kernel="6.12.9-amd64",
    machine="x86_64",
    cpu_model="A CPU",
    cpu_flags=["fpu", "sse4_2", "avx2", "avx512f", "amx_tile", "tsc", "arch_capabilities"],
    xsave_bytes=11008,
    criu="4.2.1",
    cgroup="v2",
    libc="glibc 2.36",
    page_size=4096,
    lsm=[],
    executable_memory=False,
    files=[LIBC, TORCH],
)


def _with(**changes: Any) -> Facts:
    return msgspec.structs.replace(HERE, **changes)


def test_the_same_machine_fits() -> None:
    assert rules.compare(HERE, HERE) == []


@pytest.mark.parametrize(
    ("snapshot", "here", "reason", "said"),
    [
        (HERE, _with(machine="aarch64"), reasons.INCOMPATIBLE_CPU, "aarch64"),
        (HERE, _with(page_size=65536), reasons.INCOMPATIBLE_CPU, "65536-byte pages"),
        (HERE, _with(cpu_flags=["sse4_2", "avx2"]), reasons.INCOMPATIBLE_CPU, "without amx_tile avx512f"),
        (HERE, _with(xsave_bytes=2696), reasons.INCOMPATIBLE_CPU, "2696 bytes"),
        (HERE, _with(kernel="5.15.0-91-generic"), reasons.INCOMPATIBLE_KERNEL, "5.15"),
        (HERE, _with(kernel="7.0.1"), reasons.INCOMPATIBLE_KERNEL, "7.0.1"),
        (HERE, _with(criu="4.1"), reasons.CRIU_UNUSABLE, "4.1"),
        (HERE, _with(files=[LIBC]), reasons.INCOMPATIBLE_ROOTFS, "missing: /opt/venv/libtorch_cpu.so"),
        (
            HERE,
            _with(files=[LIBC, msgspec.structs.replace(TORCH, mtime_ns=24)]),
            reasons.INCOMPATIBLE_ROOTFS,
            "changed: /opt/venv/libtorch_cpu.so",
        ),
        (
            HERE,
            _with(files=[msgspec.structs.replace(LIBC, bytes=1), TORCH]),
            reasons.INCOMPATIBLE_ROOTFS,
            "changed: /usr/lib/libc.so.6",
        ),
    ],
)
def test_one_difference_is_one_fatal_finding(snapshot: Facts, here: Facts, reason: Reason, said: str) -> None:
    (finding,) = rules.compare(snapshot, here)
    assert finding.reason is reason
    assert finding.fatal
    assert said in finding.found
    assert finding.needed


@pytest.mark.parametrize(
    "here",
    [
        _with(cpu_flags=[*HERE.cpu_flags, "avx10_1"]),
        _with(cpu_flags=["sse4_2", "avx2", "avx512f", "amx_tile"]),  # mitigations and clocks are no instructions
        _with(xsave_bytes=12000),
        _with(xsave_bytes=0),  # not known here: CRIU looks itself
        _with(kernel="6.18.44"),
        _with(criu="4.3"),
        _with(criu="5.0"),
        _with(libc="glibc 2.41"),  # the worker's own libc is among the files
        _with(files=[LIBC, TORCH, FileIdentity(path="/more", bytes=1, mtime_ns=1)]),
    ],
)
def test_more_than_needed_is_no_finding(here: Facts) -> None:
    assert rules.compare(HERE, here) == []


def test_an_older_kernel_of_the_series_is_told_but_not_fatal() -> None:
    (finding,) = rules.compare(HERE, _with(kernel="6.1.0-28-amd64"))
    assert finding.reason is reasons.INCOMPATIBLE_KERNEL
    assert not finding.fatal


def test_arm_features_all_count() -> None:
    arm = _with(machine="aarch64", cpu_flags=["fp", "asimd", "sve"], xsave_bytes=0)
    (finding,) = rules.compare(arm, msgspec.structs.replace(arm, cpu_flags=["fp", "asimd"]))
    assert "without sve" in finding.found


def test_many_files_are_one_line() -> None:
    files = [FileIdentity(path=f"/lib/{n:02}.so", bytes=n, mtime_ns=n) for n in range(12)]
    (finding,) = rules.compare(_with(files=files), _with(files=[]))
    assert finding.found == "missing: /lib/00.so, /lib/01.so, /lib/02.so, /lib/03.so, /lib/04.so and 7 more"


def test_a_clean_worker_has_no_findings() -> None:
    assert rules.capture_findings(Worker((100,), (), (), ())) == []


def test_each_thing_that_would_be_lost_is_named() -> None:
    worker = Worker(
        pids=(100,),
        strays=(Named(312, "bash"),),
        ipc_objects=("System V shm 0 (key 0x0)", "message queue /jobs"),
        odd_threads=((Named(101, "python"), "net"),),
    )
    found = {(finding.reason, finding.subject) for finding in rules.capture_findings(worker)}
    assert found == {
        (reasons.STRAY_PROCESS, "pid 312 (bash)"),
        (reasons.FOREIGN_NAMESPACE, "pid 101 (python)"),
        (reasons.SYSV_IPC, "sandbox"),
    }


def test_a_restored_worker_is_known_by_its_memory_file() -> None:
    mapped = {"/usr/lib/libc.so.6", "/srv/hotstart/snapshots/chat/memory"}
    (finding,) = rules.restored(mapped, "/srv/hotstart")
    assert finding.reason is reasons.RESTORED_WORKER
    assert "chat" in finding.found
    assert rules.restored(mapped, "/srv/hot") == []
    assert rules.restored({"/srv/hotstart/snapshots/chat/memory.so"}, "/srv/hotstart") == []


def test_the_cache_needs_no_disk() -> None:
    content = Content(memory=4 * GIB, largest=2 * GIB, tmpfs=GIB, upper=GIB)
    assert rules.capture_need(content, kv_bytes=0) == (4 + 2 + 1 + 1) * GIB + rules.MARGIN
    assert rules.capture_need(content, kv_bytes=GIB) == (3 + 2 + 1 + 1) * GIB + rules.MARGIN
    assert rules.capture_need(content, kv_bytes=3 * GIB) == (1 + 1 + 1 + 1) * GIB + rules.MARGIN
    assert rules.capture_need(content, kv_bytes=10 * GIB) == (1 + 1) * GIB + rules.MARGIN


@pytest.mark.parametrize(("short_by", "reason"), [(0, None), (1, reasons.DISK_FULL)])
def test_a_capture_needs_every_byte_of_its_room(short_by: int, reason: Reason | None) -> None:
    content = Content(memory=3 * GIB, largest=GIB, tmpfs=0, upper=0)
    room = Room(rules.capture_need(content, GIB) - short_by, 0, noexec=False)
    findings = rules.capture_room(content, GIB, room)
    assert [finding.reason for finding in findings] == ([reason] if reason else [])


@pytest.mark.parametrize("noexec", [True, False])
@pytest.mark.parametrize("mode", ["mapped", "copied"])
def test_mapped_memory_needs_an_exec_mount(mode: str, noexec: bool) -> None:
    room = Room(500 * GIB, 64 * GIB, noexec)
    told = [(f.reason, f.fatal) for f in rules.capture_room(Content(GIB, GIB, 0, 0), 0, room)]
    assert told == ([(reasons.NOEXEC_STORE, False)] if noexec else [])
    verdict = msgspec.structs.replace(VERDICT, mode=mode)
    refused = [(f.reason, f.fatal) for f in rules.restore_room(SIZES, [verdict], room, copies=1)]
    assert refused == ([(reasons.NOEXEC_STORE, True)] if noexec and mode == "mapped" else [])


SIZES = Sizes(
    memory_bytes=2 * GIB,
    zero_bytes=GIB,
    skeleton_bytes=4 << 20,
    rootfs_bytes=GIB,
    tmpfs_bytes=GIB // 4,
    shared_bytes=GIB // 4,
    stored_bytes=4 * GIB,
    kv_bytes=0,
    kv_released_bytes=GIB,
)
VERDICT = Verdict(
    pid=100,
    name="python",
    mode="mapped",
    reason="",
    mapped_bytes=2 * GIB,
    copied_bytes=GIB // 4,
    kept_bytes=GIB // 4,
    empty_bytes=0,
    ranges={},
    filters=0,
)
OWN = 2 * GIB + rules.OWN_MEMORY
"""What one copy of SIZES and VERDICT has of its own."""


def _restore(room: Room, copies: int = 1) -> list[Any]:
    return rules.restore_room(SIZES, [VERDICT], room, copies=copies)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (lambda copies: OWN * copies + SIZES.memory_bytes, []),
        (lambda copies: OWN * copies + SIZES.memory_bytes - 1, [(reasons.MEMORY_SHORT, False)]),
        (lambda copies: OWN * copies, [(reasons.MEMORY_SHORT, False)]),
        (lambda copies: OWN * copies - 1, [(reasons.MEMORY_SHORT, True)]),
    ],
)
def test_memory_of_the_copies(copies: int, memory: Callable[[int], int], expected: list[tuple[Reason, bool]]) -> None:
    room = Room(500 * GIB, memory(copies), noexec=False)
    assert [(finding.reason, finding.fatal) for finding in _restore(room, copies)] == expected


def test_every_copy_writes_its_own_files() -> None:
    need = 3 * GIB + rules.MARGIN
    assert _restore(Room(need, 64 * GIB, noexec=False), copies=3) == []
    (finding,) = _restore(Room(need - 1, 64 * GIB, noexec=False), copies=3)
    assert finding.reason is reasons.DISK_FULL


def test_a_missing_volume_is_named() -> None:
    (finding,) = rules.missing_volumes(["/srv/models"])
    assert finding.reason is reasons.MISSING_MOUNT
    assert finding.subject == "/srv/models"
