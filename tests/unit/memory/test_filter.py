"""The seccomp program against a plain model of what the kernel would touch, and against the real kernel."""

import ctypes
import itertools
import mmap
import os
import platform
import struct
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotstart.linux.syscalls import PR_SET_NO_NEW_PRIVS, prctl, seccomp_set_filter
from hotstart.snapshot_agent.memory import filter as mapped_filter
from tests.unit.memory.bpf import ALLOW, ERRNO, Call, constant_allow, simulate

PAGE = 4096
X86, ARM = "x86_64", "aarch64"
ARCH = {X86: 0xC000003E, ARM: 0xC00000B7}
COMPAT = {X86: 0x40000003, ARM: 0x40000028}
MADVISE = {X86: 28, ARM: 233}
MREMAP = {X86: 25, ARM: 216}
COMPAT_MADVISE = {X86: 219, ARM: 220}
COMPAT_MREMAP = 163
PROCESS_MADVISE = 440
X32 = 1 << 30
EINVAL_ACTION = ERRNO | 22
REFUSED = (4, 24, 102)

machines = st.sampled_from([X86, ARM])


@st.composite
def range_lists(draw: st.DrawFn, most: int = 12) -> list[tuple[int, int]]:
    """Disjoint page-aligned ranges, many of them near word boundaries and near each other."""
    base = draw(
        st.sampled_from([0, PAGE, (1 << 32) - 4 * PAGE, 0x5555_5555_0000, 0x7FFF_FFF0_0000, (1 << 56) - (1 << 40)])
    )
    points = draw(
        st.lists(
            st.sampled_from([1, 2, 3, 7, 255, 1 << 10, (1 << 20) - 1, 1 << 20, 1 << 21, 1 << 27]), max_size=2 * most
        )
    )
    edges = [base + PAGE * total for total in itertools.accumulate([0, *points])]
    pairs = [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=False) if end <= 1 << 56]
    return draw(st.permutations(pairs))


def addresses(ranges: list[tuple[int, int]]) -> st.SearchStrategy[int]:
    """Values around the edges of the ranges, and anything else."""
    edges = [edge for pair in ranges for edge in pair] or [0]
    near = st.builds(
        lambda edge, offset: (edge + offset) % (1 << 64),
        st.sampled_from(edges),
        st.sampled_from([0, 1, -1, PAGE, -PAGE, PAGE - 1, 1 - PAGE, 1 << 32, -(1 << 32), 2 * PAGE]),
    )
    return near | st.integers(0, (1 << 64) - 1) | st.sampled_from([0, (1 << 64) - PAGE, 1 << 63])


def touches(ranges: list[tuple[int, int]], start: int, length: int) -> bool:
    """The model: would the kernel, or a kernel that ignores address tags, touch a byte of a range (or refuse)?"""
    if length == 0:
        return False
    if length >= 1 << 56:
        return True
    start &= (1 << 56) - 1
    return any(start < end and begin < start + length for begin, end in ranges)


@settings(max_examples=150, deadline=None)
@given(range_lists(), machines, st.data())
def test_madvise_and_mremap_are_refused_exactly_where_they_touch_a_range(
    ranges: list[tuple[int, int]], machine: str, data: st.DataObject
) -> None:
    program = mapped_filter.build(ranges, machine=machine)
    for _ in range(12):
        start = data.draw(addresses(ranges))
        end = data.draw(addresses(ranges))
        length = data.draw(
            st.sampled_from([0, 1, PAGE, PAGE - 1, 1 << 32, (end - start) % (1 << 64)]) | addresses(ranges)
        )
        advice = data.draw(st.sampled_from(REFUSED))
        expected = EINVAL_ACTION if touches(ranges, start, length) else ALLOW
        calls = [
            Call(ARCH[machine], MADVISE[machine], (start, length, advice | data.draw(st.integers(0, 3)) << 32)),
            Call(ARCH[machine], MREMAP[machine], (start, length, data.draw(addresses(ranges)), 3, 0)),
        ]
        if machine == X86:
            calls += [Call(call.arch, call.number | X32, call.args) for call in calls]
        if start < 1 << 32 and length < 1 << 32:
            calls += [
                Call(COMPAT[machine], COMPAT_MADVISE[machine], (start, length, advice)),
                Call(COMPAT[machine], COMPAT_MREMAP, (start, length, 0, 1, 0)),
            ]
        for call in calls:
            assert simulate(program, call).action == expected, (call, ranges)


@settings(max_examples=200, deadline=None)
@given(range_lists(), machines, st.integers(0, 200), st.data())
def test_every_other_advice_is_allowed(
    ranges: list[tuple[int, int]], machine: str, advice: int, data: st.DataObject
) -> None:
    program = mapped_filter.build(ranges, machine=machine)
    start, length = data.draw(addresses(ranges)), data.draw(addresses(ranges))
    if advice not in REFUSED:
        assert simulate(program, Call(ARCH[machine], MADVISE[machine], (start, length, advice))).action == ALLOW


@given(range_lists(), machines, st.integers(0, 200))
def test_process_madvise_goes_by_the_advice_alone(ranges: list[tuple[int, int]], machine: str, advice: int) -> None:
    program = mapped_filter.build(ranges, machine=machine)
    for arch in (ARCH[machine], COMPAT[machine]):
        outcome = simulate(program, Call(arch, PROCESS_MADVISE, (3, 0x1000, 1, advice, 0)))
        assert outcome.action == (EINVAL_ACTION if advice in REFUSED else ALLOW)


@pytest.mark.parametrize("machine", [X86, ARM])
def test_the_kernel_can_prove_every_other_call_allowed(machine: str) -> None:
    """So that it skips the program for them (bitmap of seccomp_cache_prepare, Linux 5.11)."""
    program = mapped_filter.build(scattered(300), machine=machine)
    filtered = {MADVISE[machine], MREMAP[machine], PROCESS_MADVISE}
    for number in set(range(600)) - filtered:
        assert constant_allow(program, ARCH[machine], number), number
    for number in set(range(600)) - {COMPAT_MADVISE[machine], COMPAT_MREMAP, PROCESS_MADVISE}:
        assert constant_allow(program, COMPAT[machine], number), number
    assert not constant_allow(program, ARCH[machine], MADVISE[machine])
    assert simulate(program, Call(0x12345, MADVISE[machine], (0, 1 << 40, 4))).action == ALLOW


def scattered(count: int, *, step: int = 40 << 20) -> list[tuple[int, int]]:
    """``count`` ranges of 8 MiB less a page, as thread stacks lie."""
    return [(0x7F00_0000_0000 + n * step, 0x7F00_0000_0000 + n * step + (8 << 20) - PAGE) for n in range(count)]


def test_a_filtered_call_takes_few_instructions_whatever_the_number_of_ranges() -> None:
    ranges = scattered(340)
    program = mapped_filter.build(ranges, machine=X86)
    longest = max(
        len(simulate(program, Call(ARCH[X86], MADVISE[X86], (start + delta, length, 4))).trace)
        for start, end in ranges
        for delta in (-PAGE, 0, PAGE)
        for length in (PAGE, end - start)
    )
    assert longest <= 50


def test_touching_ranges_cost_nothing() -> None:
    one = mapped_filter.build([(PAGE, 101 * PAGE)], machine=X86)
    many = mapped_filter.build([(n * PAGE, (n + 1) * PAGE) for n in range(1, 101)], machine=X86)
    assert many == one


@pytest.mark.parametrize("count", [500, 5000])
def test_more_ranges_than_fit_cover_the_narrowest_gaps_too(count: int) -> None:
    ranges = [
        (start, start + PAGE)
        for start in itertools.accumulate((PAGE * (2 + n * 7919 % 5000) for n in range(count)), initial=1 << 44)
    ]
    program = mapped_filter.build(ranges, machine=X86)
    assert len(program) // 8 <= mapped_filter.MAX_INSTRUCTIONS
    assert len(program) // 8 > mapped_filter.MAX_INSTRUCTIONS * 0.9, "room is left while gaps are closed"

    def refused(start: int, end: int) -> bool:
        return simulate(program, Call(ARCH[X86], MADVISE[X86], (start, end - start, 4))).action == EINVAL_ACTION

    assert all(refused(start, end) for start, end in ranges)
    gaps = [(before[1], after[0]) for before, after in itertools.pairwise(ranges)]
    closed = {end - start for start, end in gaps if refused(start, end)}
    open_ = {end - start for start, end in gaps if not refused(start, end)}
    assert closed
    assert open_
    assert max(closed) < min(open_)


def test_what_is_no_set_of_ranges_is_an_error() -> None:
    for ranges in ([(0, 0)], [(8192, 4096)], [(0, 8192), (4096, 12288)], [(0, (1 << 56) + 1)], [(-4096, 4096)]):
        with pytest.raises(ValueError, match="0x"):
            mapped_filter.build(ranges, machine=X86)
    with pytest.raises(ValueError, match="sparc"):
        mapped_filter.build([], machine="sparc")
    with pytest.raises(ValueError, match="not enough"):
        mapped_filter.build([(4096, 8192)], machine=X86, limit=10)


# --- the real kernel ------------------------------------------------------------------------------------------------

libc = ctypes.CDLL(None, use_errno=True)
libc.mremap.restype = libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
MAYMOVE, FIXED = 1, 2


def in_child(body: Callable[[], None]) -> None:
    """Run ``body`` in a forked child; its exception fails the test."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException as error:  # noqa: BLE001
            os.write(write, repr(error).encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    assert said == b""


def anonymous(pages: int, where: int | None = None) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0x10 if where else 0)
    address = libc.mmap(where, pages * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    assert address not in (None, (1 << 64) - 1)
    ctypes.memset(address, 0x5A, pages * PAGE)
    return int(address)


def error_of(result: int | None) -> int:
    return ctypes.get_errno() if result in (-1, (1 << 64) - 1) else 0


def byte(address: int) -> int:
    return ctypes.string_at(address, 1)[0]


def install(ranges: list[tuple[int, int]]) -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    seccomp_set_filter(mapped_filter.build(ranges))


@pytest.mark.skipif(platform.machine() not in mapped_filter.MACHINES, reason="no numbers for this machine")
def test_the_kernel_runs_it() -> None:
    def body() -> None:
        area = anonymous(64)
        mapped = (area + 16 * PAGE, area + 32 * PAGE)
        install([mapped, (mapped[1] + 8 * PAGE, mapped[1] + 9 * PAGE), *scattered(100)])
        for advice in (4, 102):
            assert error_of(libc.madvise(mapped[0], PAGE, advice)) == 22
            assert error_of(libc.madvise(mapped[0] - PAGE, 2 * PAGE, advice)) == 22
            assert error_of(libc.madvise(mapped[1] - PAGE, 9 * PAGE, advice)) == 22
        assert byte(mapped[0]) == byte(mapped[1] - 1) == 0x5A, "a refused call must change nothing"
        assert error_of(libc.madvise(area, 16 * PAGE, 4)) == 0
        assert error_of(libc.madvise(mapped[1], 8 * PAGE, 4)) == 0
        assert byte(area) == byte(mapped[0] - 1) == byte(mapped[1]) == 0
        assert error_of(libc.madvise(mapped[0], PAGE, 14)) in (0, 22), "huge pages: the kernel's own answer"
        assert error_of(libc.madvise(mapped[0], 16 * PAGE, 10)) == 0, "MADV_DONTFORK is not our business"
        assert error_of(libc.mremap(mapped[0], PAGE, 2 * PAGE, MAYMOVE, None)) == 22
        assert error_of(libc.mremap(mapped[0], 16 * PAGE, 16 * PAGE, MAYMOVE | FIXED, area)) == 22
        assert byte(mapped[0]) == 0x5A

    in_child(body)


@pytest.mark.skipif(platform.machine() not in mapped_filter.MACHINES, reason="no numbers for this machine")
def test_moving_other_memory_onto_a_range_is_allowed_and_right() -> None:
    def body() -> None:
        target, source = anonymous(4), anonymous(2)
        ctypes.memset(source, 0x77, 2 * PAGE)
        install([(target, target + 4 * PAGE)])
        assert libc.mremap(source, 2 * PAGE, 2 * PAGE, MAYMOVE | FIXED, target) == target
        assert byte(target) == byte(target + 2 * PAGE - 1) == 0x77
        assert byte(target + 2 * PAGE) == 0x5A

    in_child(body)


@pytest.mark.skipif(platform.machine() not in mapped_filter.MACHINES, reason="no numbers for this machine")
def test_threads_and_children_inherit_it_and_process_madvise_is_refused() -> None:
    def body() -> None:
        area = anonymous(4)
        install([(area, area + 4 * PAGE)])
        seen = []
        thread = threading.Thread(target=lambda: seen.append(error_of(libc.madvise(area, PAGE, 4))))
        thread.start()
        thread.join()
        assert seen == [22]
        pid = os.fork()
        if pid == 0:
            os._exit(error_of(libc.madvise(area, PAGE, 4)))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 22
        iovec = ctypes.create_string_buffer(struct.pack("<QQ", area, PAGE))
        pidfd = os.pidfd_open(os.getpid())
        assert error_of(libc.syscall(ctypes.c_long(440), pidfd, iovec, ctypes.c_size_t(1), 4, 0)) == 22
        assert byte(area) == 0x5A

    in_child(body)
