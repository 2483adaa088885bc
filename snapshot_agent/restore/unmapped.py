"""A variant of a skeleton that maps nothing: every range is anonymous again and is copied before the tasks run.

Used where mapping is not wanted or not possible at the restoring machine.  The snapshot itself is never touched (a hard
link would change the times by which its files are trusted): the few megabytes of the skeleton are copied.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from hotstart.durable import write_file
from hotstart.snapshot_agent.criu import imagefile
from hotstart.snapshot_agent.criu import images_pb2 as pb
from hotstart.snapshot_agent.memory.format import Extent, Kind

_MAP_ANONYMOUS = 0x20
_ANON_PRIVATE, _FILE_PRIVATE = 1 << 9, 1 << 6


def unmap_range(vma: pb.Vma, memory_ids: Collection[int]) -> bool:
    """Turn a mapping of the memory file back into anonymous memory; False if the range is something else."""
    if not vma.status & _FILE_PRIVATE or vma.shmid not in memory_ids:
        return False
    vma.status = (vma.status & ~_FILE_PRIVATE) | _ANON_PRIVATE
    vma.flags |= _MAP_ANONYMOUS
    vma.shmid = 0
    vma.pgoff = 0
    return True


def unmapped_extents(extents: Iterable[Extent]) -> tuple[Extent, ...]:
    """The extents of a memory table when nothing is mapped (pure)."""
    return tuple(replace(e, kind=Kind.COPIED) if e.kind is Kind.MAPPED else e for e in extents)


def unmapped_images(skeleton: Path, target: Path, memory_ids: Collection[int]) -> None:
    """Write the variant of ``skeleton`` into the new directory ``target``."""
    target.mkdir(mode=0o700)
    edited = {f"mm-{pid}.img" for pid in imagefile.pid_images(skeleton, "mm")}
    for entry in os.scandir(skeleton):
        if entry.name not in edited:
            shutil.copyfile(entry.path, target / entry.name, follow_symlinks=False)
    for name in edited:
        magic, mm = imagefile.read_one(skeleton / name, pb.Mm)
        for vma in mm.vmas:
            unmap_range(vma, memory_ids)
        write_file(target / name, imagefile.encode(magic, [mm]), durable=False)
