"""From CRIU's dump to skeleton + memory file: pages move out of the images, ranges become mappings of the file.

Runs after the source has been released: it reads CRIU's files only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hotstart.durable import write_file
from hotstart.errors import HotstartError
from hotstart.reasons import IMAGE_UNEXPECTED
from hotstart.snapshot_agent.capture import process as processes
from hotstart.snapshot_agent.capture import skeleton
from hotstart.snapshot_agent.capture.judge import judge
from hotstart.snapshot_agent.capture.process import Process
from hotstart.snapshot_agent.capture.shared import Segment, shared_segments
from hotstart.snapshot_agent.capture.split import Split, split
from hotstart.snapshot_agent.catalog.manifest import Verdict
from hotstart.snapshot_agent.criu import imagefile
from hotstart.snapshot_agent.criu import images_pb2 as pb
from hotstart.snapshot_agent.memory.blocks import data_blocks, digest_blocks
from hotstart.snapshot_agent.memory.format import Extent, Kind, Table
from hotstart.snapshot_agent.memory.format import encode as encode_table
from hotstart.snapshot_agent.memory.layout import Span, place
from hotstart.snapshot_agent.memory.safety import Mode
from hotstart.snapshot_agent.memory.writer import copy_runs

Told = Callable[[float], None]
_HASHING = 0.6
"""The fraction of the work after which only digests are left (measured: copying and digesting take about as long)."""


@dataclass(frozen=True)
class Converted:
    """The result of ``convert``."""

    verdicts: list[Verdict]
    data_bytes: int
    zero_bytes: int
    shared_bytes: int
    memory_ids: list[int]
    """File ids of the memory file in the images: one per mapped process."""
    pids: list[int]
    """Every thread id of the tree."""
    tiles: bool
    """True if every thread's signal stack is large enough for AMX state: nobody without that can have used AMX."""
    executable: bool
    """True if a mapped range is executable."""


@dataclass
class _Plan:
    """Where every range and segment has its place in the memory file."""

    ranges: dict[int, dict[int, int]]
    """pid → index of the range → offset"""
    segments: dict[int, int]
    """shmid → offset"""
    size: int
    extents: list[Extent] = field(default_factory=list)


def convert(images: Path, memory: Path, table: Path, *, noexec: bool, force_copy: bool, told: Told) -> Converted:
    """Rewrite the dump in ``images`` in place and write ``memory`` and ``table``.

    ``noexec``: the memory file's mount forbids execution.  ``told`` gets the fraction done (0..1).
    Raises ``image-unexpected``, OSError (disk full).
    """
    _magic, tree = imagefile.read(images / "pstree.img", pb.PstreeEntry)
    files_magic, files = imagefile.read(images / "files.img", pb.FileEntry)
    seccomp_magic, seccomp = _read_seccomp(images)
    found = [p for entry in tree if (p := processes.load(images, entry)) is not None]
    for process in found:
        judge(process, seccomp, noexec=noexec, force_copy=force_copy)
    shared = shared_segments(images, files, {p.pid: p.mm for p in found})
    plan = _plan(found, shared)

    mapped = [p for p in found if p.mapped()]
    entries = skeleton.memory_file_entries(files, len(mapped), plan.size) if mapped else []
    for process, entry in zip(mapped, entries, strict=True):
        process.map_to(plan.ranges[process.pid], entry.id, seccomp)

    fd = os.open(memory, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.ftruncate(fd, plan.size)
        data, zero = _move_all(images, found, shared, plan, fd, told)
        for process in mapped:
            process.write(images)
        if skeleton.rearm_timers(files) or mapped:
            write_file(images / "files.img", imagefile.encode(files_magic, [*files, *entries]), durable=False)
        if mapped:
            write_file(images / "seccomp.img", imagefile.encode(seccomp_magic, [seccomp]), durable=False)
        blocks = digest_blocks(
            fd,
            plan.size,
            list(data_blocks(fd, plan.size)),
            told=lambda n, of: told(_HASHING + (1 - _HASHING) * n / max(1, of)),
        )
    finally:
        os.close(fd)
    write_file(table, encode_table(Table(plan.size, tuple(plan.extents), blocks)), durable=False)
    return Converted(
        [p.report() for p in found],
        data,
        zero,
        sum(s.size for s in shared),
        [e.id for e in entries],
        imagefile.threads_of(tree),
        all(p.has_room_for_tiles() for p in found),
        any(p.executable() for p in mapped),
    )


def _read_seccomp(images: Path) -> tuple[bytes, pb.Seccomp]:
    try:
        return imagefile.read_one(images / "seccomp.img", pb.Seccomp)
    except FileNotFoundError:  # no thread has a filter
        return imagefile.SECCOMP_HEADER, pb.Seccomp()


def _plan(found: Sequence[Process], shared: Sequence[Segment]) -> _Plan:
    spans = [Span(p.pid, *p.ranges()[i]) for p in found for i in p.moved()]
    spans += [Span(s.pid, 0, s.size) for s in shared]
    offsets, size = place(spans)
    upcoming = iter(offsets)
    plan = _Plan(
        {p.pid: {i: next(upcoming) for i in p.moved()} for p in found}, {s.shmid: next(upcoming) for s in shared}, size
    )
    for process in found:
        ranges = process.ranges()
        for index, offset in plan.ranges[process.pid].items():
            start, end = ranges[index]
            kind = Kind.MAPPED if process.modes[index] is Mode.MAPPED else Kind.COPIED
            plan.extents.append(Extent(process.pid, kind, start, end - start, offset))
    plan.extents += [Extent(s.pid, Kind.SHARED, s.address, s.size, plan.segments[s.shmid]) for s in shared]
    return plan


def _move_all(
    images: Path, found: Sequence[Process], shared: Sequence[Segment], plan: _Plan, memory_fd: int, told: Told
) -> tuple[int, int]:
    """Move all pages; returns bytes with data and bytes of zeros."""
    data = zero = 0
    todo: list[tuple[str, bytes, pb.PagemapHead, list[pb.PagemapEntry], list[tuple[int, int]], Mapping[int, int]]] = [
        (f"pagemap-{p.pid}.img", p.pagemap_magic, p.head, p.entries, p.ranges(), plan.ranges[p.pid]) for p in found
    ]
    for segment in shared:
        magic, head, entries = imagefile.read_pagemap(images / segment.pagemap)
        todo.append((segment.pagemap, magic, head, entries, [(0, segment.size)], {0: plan.segments[segment.shmid]}))
    for done, (name, magic, head, entries, ranges, places) in enumerate(todo):
        told(_HASHING * done / len(todo))
        result = split(entries, ranges, places)
        moved = _move(images / f"pages-{head.pages_id}.img", result, memory_fd)
        data, zero = data + moved[0], zero + moved[1]
        write_file(images / name, imagefile.encode(magic, [head, *result.kept]), durable=False)
    return data, zero


def _move(pages: Path, result: Split, memory_fd: int) -> tuple[int, int]:
    """Copy a pages file's runs to the memory file and shrink it to what is kept."""
    fd = os.open(pages, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        written = copy_runs(fd, memory_fd, result.runs)
        shrunk = pages.with_suffix(".tmp")
        out = os.open(shrunk, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for offset, length in result.kept_runs:
                done = 0
                while done < length:
                    n = os.copy_file_range(fd, out, length - done, offset + done)
                    if n == 0:
                        raise HotstartError(IMAGE_UNEXPECTED, f"{pages.name} is shorter than its pagemap says")
                    done += n
        finally:
            os.close(out)
        shrunk.rename(pages)
    finally:
        os.close(fd)
    return written.data_bytes, written.zero_bytes
