"""Shared memory of a dump: which segments go to the memory file, to be filled in parallel before the tasks run.

A segment is shared anonymous memory or a memfd.  It must be mapped somewhere, because it is filled through that
mapping, must not be sealed against writing, and must be large enough to be worth it; everything else is left to CRIU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hotstart.snapshot_agent.criu import imagefile
from hotstart.snapshot_agent.criu import images_pb2 as pb

WORTH_BYTES = 1 << 20
_PAGE = 4096
_ANON_SHARED, _MEMFD, _SYSVIPC = 1 << 8, 1 << 14, 1 << 10
_SEALED_AGAINST_WRITING = 0x0008 | 0x0010  # F_SEAL_WRITE, F_SEAL_FUTURE_WRITE
_MEMFD_TYPE = 18


@dataclass(frozen=True)
class Segment:
    """``size`` bytes, mapped at ``address`` in process ``pid``; its content is in the image ``pagemap``."""

    shmid: int
    pagemap: str
    pid: int
    address: int
    size: int


def shared_segments(images: Path, files: Iterable[pb.FileEntry], memory: Mapping[int, pb.Mm]) -> list[Segment]:
    """The segments whose pages Hotstart carries itself."""
    memfds = _memfds(images, files)
    found: dict[int, Segment] = {}
    for pid, mm in memory.items():
        for vma in mm.vmas:
            if vma.status & _MEMFD:
                inode = memfds.get(vma.shmid)
                if inode is None or inode.seals & _SEALED_AGAINST_WRITING or inode.hugetlb_flag:
                    continue
                shmid = inode.shmid
            elif vma.status & _ANON_SHARED and not vma.status & _SYSVIPC:
                shmid = vma.shmid
            else:
                continue
            name = f"pagemap-shmem-{shmid}.img"
            if shmid in found or not (images / name).exists():
                continue
            _magic, _head, entries = imagefile.read_pagemap(images / name)
            content = sum(imagefile.pages_of(e) for e in entries) * _PAGE
            end = max((e.vaddr + imagefile.pages_of(e) * _PAGE for e in entries), default=0)
            if content >= WORTH_BYTES:
                found[shmid] = Segment(shmid, name, pid, vma.start, end)
    return list(found.values())


def _memfds(images: Path, files: Iterable[pb.FileEntry]) -> dict[int, pb.MemfdInode]:
    """Memfd inodes by the file id that refers to them."""
    inodes: dict[int, pb.MemfdInode] = {}
    with contextlib.suppress(FileNotFoundError):
        inodes = {i.inode_id: i for i in imagefile.read(images / "memfd.img", pb.MemfdInode)[1]}
    return {f.id: inodes[f.memfd.inode_id] for f in files if f.type == _MEMFD_TYPE and f.memfd.inode_id in inodes}
