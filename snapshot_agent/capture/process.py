"""One process of a dump: its images, which of its ranges are mapped or copied, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from hotstart.durable import write_file
from hotstart.errors import HotstartError
from hotstart.reasons import IMAGE_UNEXPECTED, Reason
from hotstart.snapshot_agent.capture import skeleton
from hotstart.snapshot_agent.capture.split import count_pages
from hotstart.snapshot_agent.catalog.manifest import Verdict
from hotstart.snapshot_agent.criu import imagefile
from hotstart.snapshot_agent.criu import images_pb2 as pb
from hotstart.snapshot_agent.memory import filter as seccomp_filter
from hotstart.snapshot_agent.memory.safety import Mode, Status

PAGE = 4096
_SS_DISABLE = 2
_TILE_STACK = 12 << 10
"""8 KiB of tile data beside 2.7 KiB of other extended state, and the signal frame."""
_MOVED = (Mode.MAPPED, Mode.COPIED)


@dataclass
class Process:
    """The images of one process; ``pages``, ``modes`` and ``reasons`` run parallel to ``vmas``."""

    pid: int
    mm_magic: bytes
    mm: pb.Mm
    pagemap_magic: bytes
    head: pb.PagemapHead
    entries: list[pb.PagemapEntry]
    cores: dict[int, tuple[bytes, pb.Core]]
    pages: list[int]
    """Pages with content, per range."""
    mode: Mode = Mode.COPIED
    reason: Reason | None = None
    modes: list[Mode] = field(default_factory=list)
    reasons: list[Reason | None] = field(default_factory=list)
    filters: int = 0

    @property
    def name(self) -> str:
        """The command name that the kernel knows."""
        return self.cores[self.pid][1].tc.comm

    @property
    def vmas(self) -> list[pb.Vma]:
        """The mappings.  Guard pages stand in the same list but lie inside other ranges; CRIU puts them last."""
        return [v for v in self.mm.vmas if not v.status & Status.GUARD]

    @property
    def guards(self) -> list[tuple[int, int]]:
        """``(start, end)`` of guard pages."""
        return [(v.start, v.end) for v in self.mm.vmas if v.status & Status.GUARD]

    def ranges(self) -> list[tuple[int, int]]:
        """``(start, end)`` of every range."""
        return [(v.start, v.end) for v in self.vmas]

    def moved(self) -> list[int]:
        """Indices of the ranges whose pages go to the memory file."""
        return [i for i, m in enumerate(self.modes) if m in _MOVED]

    def mapped(self) -> list[int]:
        """Indices of the ranges that become mappings of the memory file."""
        return [i for i, m in enumerate(self.modes) if m is Mode.MAPPED]

    def executable(self) -> bool:
        """True if a mapped range is executable."""
        return any(self.vmas[i].prot & 4 for i in self.mapped())

    def has_room_for_tiles(self) -> bool:
        """True if every signal stack can hold the AMX state; the kernel refuses AMX to a process where one cannot."""
        stacks = [core.thread_core.sas for _magic, core in self.cores.values()]
        return all(s.ss_flags & _SS_DISABLE or not s.ss_size or s.ss_size >= _TILE_STACK for s in stacks)

    def map_to(self, places: dict[int, int], file_id: int, seccomp: pb.Seccomp) -> None:
        """Edit the images: mapped ranges become mappings of file ``file_id``, guarded by the filter."""
        ranges = self.ranges()
        for index in self.mapped():
            skeleton.map_range(self.vmas[index], file_id, places[index])
        program = seccomp_filter.build([ranges[i] for i in self.mapped()])
        others = [core for tid, (_magic, core) in self.cores.items() if tid != self.pid]
        skeleton.add_filter(seccomp, self.cores[self.pid][1], others, program)
        self.filters = len(skeleton.filter_chain(seccomp, self.cores[self.pid][1]))

    def write(self, images: Path) -> None:
        """Write the edited images back."""
        write_file(images / f"mm-{self.pid}.img", imagefile.encode(self.mm_magic, [self.mm]), durable=False)
        for tid, (magic, core) in self.cores.items():
            write_file(images / f"core-{tid}.img", imagefile.encode(magic, [core]), durable=False)

    def report(self) -> Verdict:
        """The verdict with its bytes."""
        content: Counter[Mode] = Counter()
        empty = 0
        for vma, mode, pages in zip(self.vmas, self.modes, self.pages, strict=True):
            content[mode] += pages * PAGE
            if mode is Mode.EMPTY:
                empty += vma.end - vma.start
        reasons = Counter(r.code for m, r in zip(self.modes, self.reasons, strict=True) if m is Mode.COPIED and r)
        return Verdict(
            pid=self.pid,
            name=self.name,
            mode=self.mode.value,
            reason=self.reason.code if self.reason else "",
            filters=self.filters,
            mapped_bytes=content[Mode.MAPPED],
            copied_bytes=content[Mode.COPIED],
            kept_bytes=content[Mode.KEPT],
            empty_bytes=empty,
            ranges=dict(reasons),
        )


def load(images: Path, entry: pb.PstreeEntry) -> Process | None:
    """Read one process's images; None for a zombie, which has no memory.  Raises ``image-unexpected``."""
    try:
        mm_magic, mm = imagefile.read_one(images / f"mm-{entry.pid}.img", pb.Mm)
    except FileNotFoundError:
        return None
    magic, head, entries = imagefile.read_pagemap(images / f"pagemap-{entry.pid}.img")
    cores = {tid: imagefile.read_one(images / f"core-{tid}.img", pb.Core) for tid in (entry.pid, *entry.threads)}
    ranges = [(v.start, v.end) for v in mm.vmas if not v.status & Status.GUARD]
    if any(before[1] > after[0] for before, after in pairwise(ranges)):
        raise HotstartError(IMAGE_UNEXPECTED, f"the ranges of process {entry.pid} are not in order")
    return Process(entry.pid, mm_magic, mm, magic, head, entries, cores, count_pages(entries, ranges))
