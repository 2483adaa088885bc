"""Edits of CRIU's images (pure over messages): ranges become private mappings of the memory file, guarded by a filter.

Unpatched CRIU then maps where it would have read.  What must hold (docs/architecture.md, "Mapped memory"): one file id
per process, or CRIU takes a forked child's range for its parent's; a seccomp filter that refuses MADV_DONTNEED and
mremap on these ranges; the file entry's size and mode are the memory file's own.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable

from hotstart.errors import HotstartError
from hotstart.names import MEMORY_NAME
from hotstart.reasons import IMAGE_UNEXPECTED
from hotstart.snapshot_agent.criu import images_pb2 as pb

REGULAR_FILE = 1
_MAP_ANONYMOUS = 0x20
_HEAP, _ANON_PRIVATE, _FILE_PRIVATE = 1 << 5, 1 << 9, 1 << 6
_SECCOMP_FILTER_MODE = 2
_TSYNC = 1


def map_range(vma: pb.Vma, file_id: int, offset: int) -> None:
    """Turn a private anonymous range into a private mapping of file ``file_id`` at ``offset`` (bytes)."""
    vma.status = (vma.status & ~(_HEAP | _ANON_PRIVATE)) | _FILE_PRIVATE
    vma.flags &= ~_MAP_ANONYMOUS
    vma.shmid = file_id
    vma.pgoff = offset


def memory_file_entries(files: Iterable[pb.FileEntry], count: int, size: int) -> list[pb.FileEntry]:
    """One regular-file entry per process for the memory file, with fresh ids.

    All carry one name, so that one inherited descriptor serves them.  CRIU drops a name's first character when it looks
    for an inherited descriptor, hence the slash; nothing of that name exists in any mount namespace.
    """
    known = list(files)
    template = next((f for f in known if f.type == REGULAR_FILE and f.HasField("reg")), None)
    if template is None:
        raise HotstartError(IMAGE_UNEXPECTED, "CRIU's images name no regular file at all")
    first = max(f.id for f in known) + 1
    entries: list[pb.FileEntry] = []
    for file_id in range(first, first + count):
        entry = pb.FileEntry(type=REGULAR_FILE, id=file_id)
        reg = entry.reg
        reg.id, reg.flags, reg.pos, reg.name = file_id, 0, 0, f"/{MEMORY_NAME}"
        reg.mnt_id = template.reg.mnt_id
        reg.size, reg.mode = size, stat.S_IFREG | 0o600
        reg.fown.uid = reg.fown.euid = reg.fown.signum = reg.fown.pid_type = reg.fown.pid = 0
        entries.append(entry)
    return entries


def add_filter(seccomp: pb.Seccomp, leader: pb.Core, others: Iterable[pb.Core], program: bytes) -> None:
    """Give every thread of one process ``program``, installed before the filters that the thread has already.

    ``prev`` means "install after me" (memory/filter.py tells the whole story).  Where all threads have equal filters,
    CRIU notes them for the leader alone with the TSYNC flag: there one entry for the leader serves all threads.  A
    thread with a filter of its own would make TSYNC fail without a word, so then each thread gets its entry.
    """
    threads = [leader, *others]
    if _filters_are_synchronised(seccomp, threads):
        threads = [leader]
        flags = _TSYNC
    else:
        flags = 0
    chained: dict[int | None, int] = {}
    for core in threads:
        thread = core.thread_core
        before = thread.seccomp_filter if thread.seccomp_mode == _SECCOMP_FILTER_MODE else None
        if before not in chained:
            entry = seccomp.seccomp_filters.add(filter=program, flags=flags)
            if before is not None:
                entry.prev = before
            chained[before] = len(seccomp.seccomp_filters) - 1
        thread.seccomp_mode = _SECCOMP_FILTER_MODE
        thread.seccomp_filter = chained[before]


def _filters_are_synchronised(seccomp: pb.Seccomp, threads: list[pb.Core]) -> bool:
    leader, others = threads[0].thread_core, [t.thread_core for t in threads[1:]]
    if any(t.seccomp_mode == _SECCOMP_FILTER_MODE for t in others):
        return False
    if leader.seccomp_mode != _SECCOMP_FILTER_MODE:
        return True  # no thread has any filter
    if leader.seccomp_filter >= len(seccomp.seccomp_filters):
        raise HotstartError(IMAGE_UNEXPECTED, "a thread has a seccomp filter that is not there")
    return not others or bool(seccomp.seccomp_filters[leader.seccomp_filter].flags & _TSYNC)


def filter_chain(seccomp: pb.Seccomp, core: pb.Core) -> list[bytes]:
    """The programs that a thread's image names, in the order of their installation."""
    if core.thread_core.seccomp_mode != _SECCOMP_FILTER_MODE:
        return []
    chain: list[bytes] = []
    index: int | None = core.thread_core.seccomp_filter
    while index is not None:
        if index >= len(seccomp.seccomp_filters) or len(chain) > len(seccomp.seccomp_filters):
            raise HotstartError(IMAGE_UNEXPECTED, "a seccomp filter refers to one that is not there")
        entry = seccomp.seccomp_filters[index]
        chain.append(entry.filter)
        index = entry.prev if entry.HasField("prev") else None
    return chain


def kept_entry(entry: pb.PagemapEntry, address: int, pages: int) -> pb.PagemapEntry:
    """A part of a pagemap entry whose pages stay in CRIU's images."""
    part = pb.PagemapEntry()
    part.CopyFrom(entry)
    part.vaddr = address
    part.compat_nr_pages = pages
    if entry.HasField("nr_pages"):
        part.nr_pages = pages
    return part


def rearm_timers(files: Iterable[pb.FileEntry]) -> int:
    """Let periodic timers tick on whose tick was unread at the dump; returns how many were mended.

    CRIU notes 0 as their time to the next tick and sets that at the restore, which disarms a timer for ever.  One
    interval is right to within the interval, which the unread tick has blurred already.
    """
    mended = 0
    for entry in files:
        if not entry.HasField("tfd"):
            continue
        timer = entry.tfd
        if timer.ticks and (timer.isec or timer.insec) and not (timer.vsec or timer.vnsec):
            timer.vsec, timer.vnsec = timer.isec, timer.insec
            mended += 1
    return mended
