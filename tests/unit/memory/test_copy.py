"""Copying into real stopped processes and real segments, byte for byte, on every path."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import random
import signal
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotstart import reasons
from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.linux.syscalls import PR_SET_NO_NEW_PRIVS, prctl, seccomp_set_filter
from hotstart.snapshot_agent.memory import copy, ring
from hotstart.snapshot_agent.memory.copy import CHUNK_BYTES, Place, copy_into, data_chunks, fill

PAGE = 4096
MIB = 1 << 20


class Stopped:
    """A child with one fresh anonymous range, stopped."""

    def __init__(self, length: int, protection: int = mmap.PROT_READ | mmap.PROT_WRITE) -> None:
        read, write = os.pipe()
        self.length = length
        self.pid = os.fork()
        if self.pid == 0:
            try:
                area = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                address = ctypes.addressof(ctypes.c_char.from_buffer(area))
                ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(length), protection)
                os.write(write, struct.pack("Q", address))
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        os.close(write)
        (self.address,) = struct.unpack("Q", os.read(read, 8))
        os.close(read)
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)
        self.mem = os.open(f"/proc/{self.pid}/mem", os.O_RDWR | os.O_CLOEXEC)

    def content(self) -> bytes:
        return os.pread(self.mem, self.length, self.address)

    def resident(self) -> int:
        """Private bytes of the range."""
        inside = False
        for line in Path(f"/proc/{self.pid}/smaps").read_text().splitlines():
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                start, end = (int(x, 16) for x in words[0].split("-"))
                inside = start <= self.address < end
            elif inside and words[0] == "Rss:":
                return int(words[1]) * 1024
        raise AssertionError("the range is gone")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def close(self) -> None:
        os.close(self.mem)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            self.kill()


@contextlib.contextmanager
def stopped(length: int, protection: int = mmap.PROT_READ | mmap.PROT_WRITE) -> Iterator[Stopped]:
    child = Stopped(length, protection)
    try:
        yield child
    finally:
        child.close()


@contextlib.contextmanager
def memory_file(path: Path, pieces: dict[int, bytes], size: int) -> Iterator[int]:
    """A sparse file with data at the given offsets."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        for offset, data in pieces.items():
            os.pwrite(fd, data, offset)
        os.ftruncate(fd, size)
        yield fd
    finally:
        os.close(fd)
        path.unlink()


def evict(fd: int) -> None:
    """Throw the file out of the page cache."""
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def tells_what_is_cached(fd: int) -> bool:
    """False on tmpfs."""
    try:
        os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError as error:
        return error.errno != errno.EOPNOTSUPP
    return True


def noise(length: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(length)


MODES = ["cached", "evicted", "evicted, no ring"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_memory_of_a_stopped_process_is_filled(tmp_path: Path, mode: str, threads: int) -> None:
    data = {3 * PAGE: noise(7 * MIB + 5 * PAGE, 1), 40 * MIB: noise(PAGE, 2), 60 * MIB: noise(9 * MIB, 3)}
    with memory_file(tmp_path / "memory", data, 80 * MIB) as fd, stopped(40 * MIB) as child:
        if mode != "cached":
            evict(fd)
        places = [
            (60 * MIB, child.address, 9 * MIB),
            (0, child.address + 9 * MIB, 8 * MIB),
            (40 * MIB - PAGE, child.address + 20 * MIB, 3 * PAGE),
        ]
        report = copy_into(fd, child.mem, places, threads=threads, io_uring="no ring" not in mode)
        expected = bytearray(40 * MIB)
        for offset, address, length in places:
            expected[address - child.address : address - child.address + length] = os.pread(fd, length, offset)
        assert child.content() == expected
        assert report.bytes == sum(map(len, data.values()))
        assert report.cached_bytes + report.read_bytes == report.bytes
        known = tells_what_is_cached(fd)
        assert report.path == {"cached": "page-cache" if known else "io_uring", "evicted": "io_uring"}.get(
            mode, "threads"
        )
        assert (report.read_bytes == 0) == (mode == "cached" and known)


def test_holes_cost_the_process_no_memory(tmp_path: Path) -> None:
    pieces = {n * MIB: noise(PAGE, n) for n in range(0, 64, 2)}
    with memory_file(tmp_path / "memory", pieces, 64 * MIB) as fd, stopped(64 * MIB) as child:
        before = child.resident()
        assert copy_into(fd, child.mem, [(0, child.address, 64 * MIB)]).bytes == 32 * PAGE
        assert child.resident() - before <= 33 * PAGE


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 40), st.booleans()), min_size=1, max_size=60),
    seed=st.integers(0, 1 << 30),
    cold=st.booleans(),
    threads=st.integers(1, 3),
    ring_allowed=st.booleans(),
)
def test_any_extents_arrive_where_they_belong(
    tmp_path: Path, pieces: list[tuple[int, int, bool]], seed: int, cold: bool, threads: int, ring_allowed: bool
) -> None:
    """Extents of any page count, with gaps, holes inside, in any order, from any place to any place."""
    rng = random.Random(seed)
    places: list[Place] = []
    data: dict[int, bytes] = {}
    offset = target = 0
    for pages, gap, hole in pieces:
        length = pages * PAGE
        places.append((offset, target, length))
        content = rng.randbytes(length)
        if not hole:
            data[offset] = content
        elif pages > 3:
            data[offset + PAGE] = content[PAGE : PAGE * (pages // 2)]
        offset += length + gap * PAGE
        target += length + rng.randrange(3) * PAGE
    rng.shuffle(places)
    with memory_file(tmp_path / "memory", data, offset) as fd, stopped(target) as child:
        if cold:
            evict(fd)
        moved = [(source, child.address + place, length) for source, place, length in places]
        report = copy_into(fd, child.mem, moved, threads=threads, io_uring=ring_allowed)
        expected = bytearray(target)
        for source, place, length in places:
            expected[place : place + length] = os.pread(fd, length, source)
        assert child.content() == expected
        assert report.bytes == sum(map(len, data.values()))


@pytest.mark.parametrize("protection", [mmap.PROT_READ, 0, mmap.PROT_READ | mmap.PROT_EXEC])
def test_ranges_without_write_permission_are_filled(tmp_path: Path, protection: int) -> None:
    data = noise(MIB, 4)
    with memory_file(tmp_path / "memory", {0: data}, MIB) as fd, stopped(MIB, protection) as child:
        copy_into(fd, child.mem, [(0, child.address, MIB)])
        assert child.content() == data


@pytest.mark.parametrize("io_uring", [True, False])
def test_a_segment_is_filled_and_stays_sparse(tmp_path: Path, io_uring: bool) -> None:
    pieces = {5 * PAGE: noise(3 * MIB, 5), 50 * MIB: noise(2 * PAGE, 6)}
    segment = os.memfd_create("segment")
    try:
        os.ftruncate(segment, 70 * MIB)
        with memory_file(tmp_path / "memory", pieces, 64 * MIB) as fd:
            evict(fd)
            fill(fd, segment, [(0, 4 * MIB, 60 * MIB)], io_uring=io_uring)
            assert os.pread(segment, 60 * MIB, 4 * MIB) == os.pread(fd, 60 * MIB, 0)
            assert os.fstat(segment).st_size == 70 * MIB
            assert os.fstat(segment).st_blocks * 512 == 3 * MIB + 2 * PAGE
    finally:
        os.close(segment)


def test_a_file_system_that_cannot_tell_what_is_cached(tmp_path: Path) -> None:
    data = noise(6 * MIB, 7)
    source = os.memfd_create("memory")
    try:
        os.pwrite(source, data, 0)
        for io_uring, path in ((True, "io_uring"), (False, "threads")):
            with stopped(6 * MIB) as child:
                report = copy_into(source, child.mem, [(0, child.address, 6 * MIB)], io_uring=io_uring)
                assert child.content() == data
                assert report.path == path
    finally:
        os.close(source)


@pytest.mark.parametrize("cold", [False, True])
def test_a_range_that_does_not_exist_is_named(tmp_path: Path, cold: bool) -> None:
    with memory_file(tmp_path / "memory", {0: noise(20 * MIB, 8)}, 20 * MIB) as fd, stopped(MIB) as child:
        if cold:
            evict(fd)
        with pytest.raises(HotstartError) as caught:
            copy_into(fd, child.mem, [(0, child.address, MIB), (MIB, PAGE, 3 * PAGE)])
        assert caught.value.reason is reasons.COPY_FAILED
        assert "0x1000-0x4000 (memory file at 0x100000)" in caught.value.detail


def test_a_process_that_died_is_an_error(tmp_path: Path) -> None:
    with memory_file(tmp_path / "memory", {0: noise(MIB, 9)}, MIB) as fd, stopped(MIB) as child:
        child.kill()
        with pytest.raises(HotstartError) as caught:
            copy_into(fd, child.mem, [(0, child.address, MIB)])
        assert caught.value.reason is reasons.COPY_FAILED
        assert f"{child.address:#x}-" in caught.value.detail


def test_a_memory_file_that_is_too_short_is_an_error_not_zeros(tmp_path: Path) -> None:
    with memory_file(tmp_path / "memory", {0: noise(MIB, 10)}, MIB) as fd, stopped(2 * MIB) as child:
        with pytest.raises(HotstartError) as caught:
            copy_into(fd, child.mem, [(0, child.address, MIB + PAGE)])
        assert caught.value.reason is reasons.COPY_FAILED


@pytest.mark.parametrize("io_uring", [True, False])
def test_a_file_that_shrinks_meanwhile_is_an_error(
    tmp_path: Path, io_uring: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with memory_file(tmp_path / "memory", {0: noise(MIB, 11)}, MIB) as fd, stopped(MIB) as child:
        planned = list(data_chunks(fd, [(0, child.address, MIB)]))
        monkeypatch.setattr(copy, "data_chunks", lambda _fd, _extents: iter(planned))
        os.ftruncate(fd, CHUNK_BYTES + PAGE)
        with pytest.raises(HotstartError) as caught:
            copy_into(fd, child.mem, [(0, child.address, MIB)], io_uring=io_uring)
        assert caught.value.reason is reasons.COPY_FAILED
        assert "ends" in caught.value.detail


def test_a_deadline_ends_it_even_while_reads_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that nobody writes to stands for a disk that does not answer."""
    reader, writer = os.pipe()
    try:
        with stopped(MIB) as child:
            monkeypatch.setattr(copy, "data_chunks", lambda _fd, _extents: iter([(0, child.address, PAGE)]))
            monkeypatch.setattr(copy._Worker, "_from_cache", lambda _self, _view, _place: 0)
            monkeypatch.setattr(ring.ReadRing, "read", _read_stream)
            began = time.monotonic()
            with pytest.raises(HotstartError) as caught:
                copy_into(reader, child.mem, [(0, child.address, PAGE)], deadline=Deadline.after(0.3, "the copy"))
            assert caught.value.reason is reasons.DEADLINE
            assert time.monotonic() - began < 5
            assert not ring._abandoned, "the hanging read was cancelled"
    finally:
        os.close(reader)
        os.close(writer)


def _read_stream(self: ring.ReadRing, token: int, fd: int, buffer: memoryview, _offset: int) -> None:
    _READ(self, token, fd, buffer, (1 << 64) - 1)  # offset -1: the pipe has none


_READ = ring.ReadRing.read


def test_several_copies_at_the_same_time(tmp_path: Path) -> None:
    """As several restores of one snapshot: one descriptor, many targets."""
    data = noise(16 * MIB, 12)
    with memory_file(tmp_path / "memory", {0: data}, 16 * MIB) as fd, contextlib.ExitStack() as stack:
        evict(fd)
        children = [stack.enter_context(stopped(16 * MIB)) for _ in range(3)]
        threads = [
            threading.Thread(target=copy_into, args=(fd, child.mem, [(0, child.address, 16 * MIB)]))
            for child in children
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(child.content() == data for child in children)


def test_where_io_uring_is_refused_threads_read_and_the_report_says_so(tmp_path: Path) -> None:
    """A child of its own takes a filter that answers EPERM to io_uring_setup, as containers do."""
    data = noise(6 * MIB, 13)
    ld, jeq, ret = 0x20, 0x15, 0x06
    program = b"".join(
        struct.pack("<HBBI", *op)
        for op in [(ld, 0, 0, 0), (jeq, 0, 1, 425), (ret, 0, 0, 0x50000 | errno.EPERM), (ret, 0, 0, 0x7FFF0000)]
    )
    with memory_file(tmp_path / "memory", {0: data}, 6 * MIB) as fd, stopped(6 * MIB) as child:
        evict(fd)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                prctl(PR_SET_NO_NEW_PRIVS, 1)
                seccomp_set_filter(program)
                report = copy_into(fd, child.mem, [(0, child.address, 6 * MIB)])
                code = 0 if report.path == "threads" and report.bytes == 6 * MIB else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert child.content() == data


def test_nothing_to_copy(tmp_path: Path) -> None:
    with memory_file(tmp_path / "memory", {}, MIB) as fd, stopped(PAGE) as child:
        report = copy_into(fd, child.mem, [])
        assert (report.bytes, report.path) == (0, "page-cache")
        assert copy_into(fd, child.mem, [(0, child.address, PAGE)]).bytes == 0
