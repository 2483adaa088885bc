"""Which processes and which of their ranges may be mapped: rules over facts (pure).

A private file mapping is not anonymous memory.  Each rule below names the difference that would otherwise be met by a
program, silently or as a failed restore (measured one by one).  What no rule names behaves the same in both:
``MADV_COLD``, ``PAGEOUT``, ``POPULATE``, ``MERGEABLE``, ``HUGEPAGE`` and ``DONTFORK``, mprotect, munmap and mmap in
the middle, brk down and up, fork and write, direct I/O, reservations without access.  ``MADV_FREE`` and
``MADV_REMOVE`` answer with errors, which their callers must cope with already.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hotstart import reasons
from hotstart.reasons import Reason
from hotstart.snapshot_agent.memory.filter import CHAIN_OVERHEAD, MAX_CHAIN_INSTRUCTIONS, MAX_INSTRUCTIONS


class Mode(enum.StrEnum):
    """How memory comes back."""

    MAPPED = "mapped"
    """As a private mapping of the memory file."""
    COPIED = "copied"
    """As anonymous memory, filled from the memory file before the process runs."""
    KEPT = "kept"
    """By CRIU, from its own images (or through a shared segment that is filled once)."""
    EMPTY = "empty"
    """As anonymous memory without content."""


Verdict = tuple[Mode, Reason | None]
"""The mode, and why it is not ``MAPPED``: set for ``COPIED`` alone."""


class Status(enum.IntFlag):
    """VMA_* bits of ``status`` in CRIU's mm image (criu/include/image.h)."""

    REGULAR = 1 << 0
    STACK = 1 << 1
    VSYSCALL = 1 << 2
    VDSO = 1 << 3
    HEAP = 1 << 5
    FILE_PRIVATE = 1 << 6
    FILE_SHARED = 1 << 7
    ANON_SHARED = 1 << 8
    ANON_PRIVATE = 1 << 9
    SYSVIPC = 1 << 10
    SOCKET = 1 << 11
    VVAR = 1 << 12
    AIORING = 1 << 13
    MEMFD = 1 << 14
    SHADOW_STACK = 1 << 15
    GUARD = 1 << 16
    UPROBES = 1 << 17


_ANONYMOUS = Status.REGULAR | Status.ANON_PRIVATE
_SPECIAL = ~int(_ANONYMOUS | Status.HEAP | Status.STACK)
"""A range with any of these bits, known or not, is no plain memory: CRIU knows what to do with it."""

PROT_EXEC = 4
MAP_TYPE = 0x0F
MAP_PRIVATE = 0x02
MAP_DROPPABLE = 0x08
MAP_GROWSDOWN = 0x0100
MAP_LOCKED = 0x2000
MAP_HUGETLB = 0x40000
MADV_WIPEONFORK = 1 << 18
"""Bit of ``madv`` in CRIU's mm image: one bit per advice, at the advice's number."""

SECCOMP_STRICT = 1
SECCOMP_FILTER = 2


@dataclass(frozen=True)
class ProcessFacts:
    """What is known of one process."""

    bits64: bool = True
    seccomp_mode: int = 0
    """0, SECCOMP_STRICT or SECCOMP_FILTER."""
    filters: int = 0
    """Filters of the thread that has most."""
    filter_instructions: int = 0
    """Instructions of those filters together."""
    can_install: bool = True
    """The restorer will have CAP_SYS_ADMIN when it installs filters."""
    userfaultfd: bool = False
    """A thread of it holds a userfaultfd."""
    memory_noexec: bool = False
    """The memory file lies on a mount without execution."""
    force_copy: bool = False
    """Copying was asked for."""


@dataclass(frozen=True)
class RangeFacts:
    """One range of CRIU's mm image."""

    start: int
    end: int
    prot: int
    flags: int
    status: int
    madv: int = 0
    pages: int = 0
    """Pages that the dump has for it."""
    zero_pages: int = 0
    """Those of them that are known to hold zeros only."""


def judge_process(facts: ProcessFacts) -> Verdict:
    """MAPPED if mapping is sound for the process's plain ranges, else COPIED with the reason."""
    if facts.force_copy:
        return Mode.COPIED, reasons.COPIED_BY_CHOICE
    if not _can_be_filtered(facts):
        # without the filter MADV_DONTNEED and mremap bring back old bytes: wrong memory under jemalloc and Go
        return Mode.COPIED, reasons.COPIED_FILTER
    if facts.userfaultfd:
        # UFFDIO_REGISTER answers EINVAL for a private file mapping: the program's own paging would stop
        return Mode.COPIED, reasons.COPIED_USERFAULTFD
    if facts.memory_noexec:
        # mprotect(PROT_EXEC) answers EACCES for a mapping of such a file.  A just-in-time compiler may ask later,
        # for any range, and a range that is executable now fails the restore.
        return Mode.COPIED, reasons.COPIED_NOEXEC
    return Mode.MAPPED, None


def _can_be_filtered(facts: ProcessFacts) -> bool:
    chain = facts.filter_instructions + CHAIN_OVERHEAD * (facts.filters + 1) + MAX_INSTRUCTIONS
    return (
        facts.can_install
        and facts.bits64  # the memory of a 32-bit process lies where the filter's numbers are those of compat calls
        and facts.seccomp_mode != SECCOMP_STRICT  # strict mode takes no filter
        and chain <= MAX_CHAIN_INSTRUCTIONS  # the kernel's bound on all filters of a thread
    )


def judge_range(facts: RangeFacts, process: Verdict, *, guarded: bool = False) -> Verdict:
    """How one range comes back, given the verdict on its process.

    ``guarded``: guard pages (MADV_GUARD_INSTALL, a ``Status.GUARD`` entry of the same image) lie in the range.
    """
    if facts.status & _ANONYMOUS != _ANONYMOUS or facts.status & _SPECIAL:
        # files, shared segments, vdso, AIO rings, shadow stacks, guard entries (which are no mappings): CRIU's business
        return Mode.KEPT, None
    if facts.pages <= facts.zero_pages:
        # nothing to bring back (a KV cache after its release): a mapping would only make its first writes dearer
        return Mode.EMPTY, None
    if reason := _must_stay_anonymous(facts, guarded):
        return Mode.COPIED, reason
    return process


def _must_stay_anonymous(facts: RangeFacts, guarded: bool) -> Reason | None:
    if facts.flags & MAP_HUGETLB:
        # only a hugetlbfs file can be mapped with huge pages: CRIU's mmap of another file fails
        return reasons.COPIED_HUGETLB
    if facts.flags & MAP_GROWSDOWN or facts.status & Status.STACK:
        # a file mapping that grows down exposes the bytes that precede its place in the file
        return reasons.COPIED_GROWSDOWN
    if facts.madv & MADV_WIPEONFORK or facts.flags & MAP_TYPE == MAP_DROPPABLE:
        # the kernel refuses both for files: CRIU's restore fails; were it not so, children would share random state
        return reasons.COPIED_WIPEONFORK
    if facts.flags & MAP_LOCKED:
        # mlock makes every page of a private mapping the process's own: nothing would be shared, all would be read
        return reasons.COPIED_LOCKED
    if guarded:
        # guard pages on file mappings need Linux 6.15, and a removed guard page shows the file's bytes instead of zeros
        return reasons.COPIED_GUARD
    return None
