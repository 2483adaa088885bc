"""The seccomp program that keeps mapped memory honest: EINVAL where the kernel would show old content instead of zeros.

A mapped range is a private mapping of the memory file.  Dropping its pages (``MADV_DONTNEED``), putting guard pages
over them, or growing and moving it (``mremap``) would bring back the *file's* bytes, where anonymous memory has zeros:
jemalloc and Go then hand out memory that is not zero.  The program answers EINVAL to exactly these calls, an answer
that callers must expect anyway (the kernel gives it for locked memory), and allows everything else.

What it refuses, where the call touches a mapped range: ``madvise`` with an advice of ``REFUSED_ADVICE``, and
``mremap`` of an old range there.  A ``mremap`` whose *new* range falls on a mapped range is sound (it replaces what was
mapped there, as ``mmap(MAP_FIXED)`` does) and is allowed.  ``process_madvise`` with such an advice is refused whole:
its ranges lie in memory, which a filter cannot read.

What it costs: a call with another number never runs it.  Linux 5.11 and newer evaluate a filter once per number and
remember "always allowed" in a bitmap if only the number, the architecture, comparisons and AND are used on the way;
``build`` keeps to that.  A filtered call runs about 40 instructions, whatever the number of ranges (binary search).

How it is chained into CRIU's ``seccomp.img`` (criu/seccomp.c, criu/pie/restorer.c; the edit itself is not made here):

- ``seccomp_filters[i].prev`` means "install *after* me".  A thread's ``seccomp_filter`` is the index of the filter to
  be installed first, the oldest.  So ours becomes a new entry with ``prev`` = the thread's old ``seccomp_filter`` (none
  if its ``seccomp_mode`` was not 2), and the thread's ``seccomp_filter`` becomes the new entry: one new entry per
  distinct old value.  Ours is then installed first, before a filter that forbids installing filters.
- When all threads of a process have equal filters, CRIU keeps them for the leader alone, with
  ``flags & SECCOMP_FILTER_FLAG_TSYNC`` (1), and notes mode 0 for the other threads.  Such threads must stay at mode 0
  and our entry must carry the flag of the entry it precedes.  A thread with a filter of its own makes TSYNC fail with a
  *positive* result, which CRIU takes for success: the filters would be missing without a word.
- A process without any filter needs one entry with the TSYNC flag on its leader: one installation, whatever the number
  of threads.
- The restorer installs filters before it gives up CAP_SYS_ADMIN, so no_new_privs is not needed.
- ``Seccomp_filters`` in ``/proc/PID/task/TID/status`` counts what a thread really has: worth comparing before a
  restored process runs.
"""

from __future__ import annotations

import platform
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_INSTRUCTIONS = 4096
"""BPF_MAXINSNS: the longest program that the kernel takes."""
MAX_CHAIN_INSTRUCTIONS = 32768
"""MAX_INSNS_PER_PATH: instructions of all filters of a thread, each filter counting CHAIN_OVERHEAD more."""
CHAIN_OVERHEAD = 4

MADV_DONTNEED = 4
MADV_DONTNEED_LOCKED = 24
MADV_GUARD_INSTALL = 102
REFUSED_ADVICE = (MADV_DONTNEED, MADV_DONTNEED_LOCKED, MADV_GUARD_INSTALL)
"""Advice after which anonymous memory reads as zeros (for guard pages: once they are removed)."""

EINVAL = 22
RET_ALLOW = 0x7FFF0000
RET_EINVAL = 0x00050000 | EINVAL

# struct seccomp_data (linux/seccomp.h), little endian
_NR, _ARCH = 0, 4


def _argument(index: int) -> int:
    """Offset of the low word of an argument; its high word is 4 further."""
    return 16 + 8 * index


# instruction codes of linux/bpf_common.h
_LD_ABS, _LD_MEM, _ST, _TAX = 0x20, 0x60, 0x02, 0x07
_ADD_K, _ADD_X, _AND_K = 0x04, 0x0C, 0x54
_JA, _JEQ, _JGT, _JGE, _JGE_X = 0x05, 0x15, 0x25, 0x35, 0x3D
_RET = 0x06

_ADDRESS_HIGH = 0x00FFFFFF
"""High word of an address without its tag: the kernel ignores the top byte on arm64, and bits 57-62 with x86's LAM."""
_LENGTH_HIGH = 0x01000000
"""High word of lengths (2**56) that no address space holds."""
_START_HIGH, _START_LOW, _END_HIGH, _END_LOW = range(4)
"""Scratch memory words: the call's first byte, and the byte after its last."""


class _Calls(NamedTuple):
    """An architecture (AUDIT_ARCH_*) and its system call numbers."""

    arch: int
    madvise: int
    mremap: int
    process_madvise: int


@dataclass(frozen=True)
class _Machine:
    native: _Calls
    compat: _Calls
    """32-bit calls, which a 64-bit process can make too."""
    number_mask: int
    """Folds further number spaces of the native architecture onto the first (x32 calls have bit 30 set)."""


MACHINES = {
    "x86_64": _Machine(_Calls(0xC000003E, 28, 25, 440), _Calls(0x40000003, 219, 163, 440), 0xBFFFFFFF),
    "aarch64": _Machine(_Calls(0xC00000B7, 233, 216, 440), _Calls(0x40000028, 220, 163, 440), 0xFFFFFFFF),
}


class _Op(NamedTuple):
    """One ``struct sock_filter``."""

    code: int
    k: int = 0
    jt: int = 0
    jf: int = 0


class _Jump(NamedTuple):
    """A forward jump whose targets are labels; no label means the next instruction."""

    code: int
    k: int
    yes: str = ""
    no: str = ""


class Range(NamedTuple):
    """Addresses ``start`` up to, not including, ``end``."""

    start: int
    end: int


_ALLOW = _Op(_RET, RET_ALLOW)
_REFUSE = _Op(_RET, RET_EINVAL)


def build(
    ranges: Sequence[tuple[int, int]], *, machine: str = platform.machine(), limit: int = MAX_INSTRUCTIONS
) -> bytes:
    """The program (an array of ``struct sock_filter``) for the mapped ``ranges`` (start, end) of one process.

    The ranges come in any order; they do not overlap, are page aligned and lie below 2**56.  When they need more than
    ``limit`` instructions, the narrowest gaps between them are treated as mapped too: memory there gets EINVAL without
    need, which is sound.  Raises ValueError for ranges or a machine that it cannot serve.
    """
    if machine not in MACHINES:
        raise ValueError(f"no system call numbers are known for {machine}")
    joined = coalesce(ranges)
    head = _head(MACHINES[machine])
    fewest, most = 0, max(0, len(joined) - 1)
    while fewest < most:
        closed = (fewest + most) // 2
        if len(head) + len(_search(close_gaps(joined, closed))) <= limit:
            most = closed
        else:
            fewest = closed + 1
    program = head + _search(close_gaps(joined, fewest))
    if len(program) > limit:
        raise ValueError(f"{limit} instructions are not enough for any filter")
    return b"".join(struct.pack("<HBBI", op.code, op.jt, op.jf, op.k) for op in program)


def coalesce(ranges: Sequence[tuple[int, int]]) -> list[Range]:
    """The ranges in order, those that touch joined (pure); raises ValueError for what is no set of ranges."""
    joined: list[Range] = []
    for start, end in sorted(ranges):
        if not 0 <= start < end <= 1 << 56:
            raise ValueError(f"{start:#x}-{end:#x} is not a range of user memory")
        if joined and start < joined[-1].end:
            raise ValueError(f"{start:#x}-{end:#x} overlaps {joined[-1].start:#x}-{joined[-1].end:#x}")
        if joined and start == joined[-1].end:
            joined[-1] = Range(joined[-1].start, end)
        else:
            joined.append(Range(start, end))
    return joined


def close_gaps(ranges: list[Range], count: int) -> list[Range]:
    """The ranges (in order) with the ``count`` narrowest gaps between them closed."""
    narrowest = sorted(range(1, len(ranges)), key=lambda index: ranges[index].start - ranges[index - 1].end)
    closing = set(narrowest[:count])
    closed: list[Range] = []
    for index, item in enumerate(ranges):
        if index in closing:
            closed[-1] = Range(closed[-1].start, item.end)
        else:
            closed.append(item)
    return closed


def _head(machine: _Machine) -> list[_Op]:
    """Everything before the search: returns, or leaves the call's start and end address in scratch memory."""
    native = [_Op(_LD_ABS, _NR), _Op(_AND_K, machine.number_mask), *_dispatch(machine.native)]
    compat = [_Jump(_JEQ, machine.compat.arch, no="allow"), _Op(_LD_ABS, _NR), *_dispatch(machine.compat)]
    lines: list[_Op | _Jump | str] = [
        _Op(_LD_ABS, _ARCH),
        _Jump(_JEQ, machine.native.arch, no="compat"),
        *native,
        "compat",
        *compat,
        "process_madvise",
        _Op(_LD_ABS, _argument(3)),
        *(_Jump(_JEQ, advice, yes="refuse") for advice in REFUSED_ADVICE),
        "allow",
        _ALLOW,
        "refuse",
        _REFUSE,
        "madvise",
        _Op(_LD_ABS, _argument(2)),
        *(_Jump(_JEQ, advice, yes="mremap") for advice in REFUSED_ADVICE),
        _ALLOW,
        "mremap",
        *_bounds(),
    ]
    return _assemble(lines)


def _dispatch(calls: _Calls) -> list[_Op | _Jump]:
    """Go by the system call number in A."""
    return [
        _Jump(_JEQ, calls.madvise, yes="madvise"),
        _Jump(_JEQ, calls.mremap, yes="mremap"),
        _Jump(_JEQ, calls.process_madvise, yes="process_madvise"),
        _ALLOW,
    ]


def _bounds() -> list[_Op | _Jump | str]:
    """start = argument 0 less its tag, end = start + argument 1.

    The kernel rounds the length up to pages; with aligned ranges and an aligned start (others it refuses) that changes
    no answer.  It does nothing for a length of 0, and refuses 2**56 and more.
    """
    address, length = _argument(0), _argument(1)
    return [
        _Op(_LD_ABS, length + 4),
        _Jump(_JGE, _LENGTH_HIGH, no="possible"),
        _REFUSE,
        "possible",
        _Jump(_JEQ, 0, no="some"),
        _Op(_LD_ABS, length),
        _Jump(_JEQ, 0, no="some"),
        _ALLOW,
        "some",
        _Op(_LD_ABS, address),
        _Op(_ST, _START_LOW),
        _Op(_TAX),
        _Op(_LD_ABS, length),
        _Op(_ADD_X),
        _Op(_ST, _END_LOW),
        _Jump(_JGE_X, 0, yes="no carry"),  # the sum of the low words is smaller than one of them: it wrapped
        _Op(_LD_ABS, length + 4),
        _Op(_ADD_K, 1),
        _Jump(_JA, 0, yes="high words"),
        "no carry",
        _Op(_LD_ABS, length + 4),
        "high words",
        _Op(_TAX),
        _Op(_LD_ABS, address + 4),
        _Op(_AND_K, _ADDRESS_HIGH),
        _Op(_ST, _START_HIGH),
        _Op(_ADD_X),
        _Op(_ST, _END_HIGH),
    ]


def _assemble(lines: Sequence[_Op | _Jump | str]) -> list[_Op]:
    """Turn labels into offsets."""
    places: dict[str, int] = {}
    count = 0
    for line in lines:
        if isinstance(line, str):
            places[line] = count
        else:
            count += 1
    program: list[_Op] = []
    for line in lines:
        if isinstance(line, _Jump):
            yes, no = (places[label] - len(program) - 1 if label else 0 for label in (line.yes, line.no))
            program.append(_Op(_JA, yes) if line.code == _JA else _Op(line.code, line.k, yes, no))
        elif isinstance(line, _Op):
            program.append(line)
    return program


def _search(ranges: list[Range]) -> list[_Op]:
    """Decide whether the call's [start, end) touches a range.

    The only candidate is the first range that ends after the call's start.  It is found by binary search: first over
    the high words of the ranges' ends, then over the low words of those with one high word, so that each step compares
    one word that stays in A.
    """
    return [_Op(_LD_MEM, _START_HIGH), *_by_high_word(ranges, 0, len(ranges))]


def _by_high_word(ranges: list[Range], first: int, last: int) -> list[_Op]:
    """A holds the start's high word; the candidate is one of ``first`` .. ``last`` (the number of ranges: none)."""
    if first == last:
        return _touches(ranges, first)
    high = ranges[(first + last) // 2].end >> 32
    begin = bisect_left(ranges, high, first, last, key=lambda item: item.end >> 32)
    end = bisect_right(ranges, high, first, last, key=lambda item: item.end >> 32)
    same = [_Op(_LD_MEM, _START_LOW), *_by_low_word(ranges, begin, end)]
    not_above = _branch(_JEQ, high, same, _by_high_word(ranges, first, begin))
    return _branch(_JGT, high, _by_high_word(ranges, end, last), not_above)


def _by_low_word(ranges: list[Range], first: int, last: int) -> list[_Op]:
    """A holds the start's low word; the ends of ranges ``first`` .. ``last`` - 1 have the start's high word."""
    if first == last:
        return _touches(ranges, first)
    middle = (first + last) // 2
    low = ranges[middle].end & 0xFFFFFFFF
    return _branch(_JGE, low, _by_low_word(ranges, middle + 1, last), _by_low_word(ranges, first, middle))


def _touches(ranges: list[Range], index: int) -> list[_Op]:
    """Refuse if the call ends after the candidate's start."""
    if index == len(ranges):
        return [_ALLOW]
    high, low = ranges[index].start >> 32, ranges[index].start & 0xFFFFFFFF
    return _assemble(
        [
            _Op(_LD_MEM, _END_HIGH),
            _Jump(_JGT, high, yes="refuse"),
            _Jump(_JEQ, high, no="allow"),
            _Op(_LD_MEM, _END_LOW),
            _Jump(_JGT, low, yes="refuse"),
            "allow",
            _ALLOW,
            "refuse",
            _REFUSE,
        ]
    )


def _branch(code: int, k: int, yes: list[_Op], no: list[_Op]) -> list[_Op]:
    """Run ``yes`` or ``no``, each of which ends in returns; conditional jumps reach 255 instructions, JA any number."""
    if len(no) <= 255:
        return [_Op(code, k, len(no), 0), *no, *yes]
    return [_Op(code, k, 0, 1), _Op(_JA, len(no)), *no, *yes]
