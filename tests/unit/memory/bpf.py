"""A machine for seccomp programs (classic BPF over ``struct seccomp_data``), as strict as the kernel's checker."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

ALLOW = 0x7FFF0000
ERRNO = 0x00050000
U32 = 0xFFFFFFFF
SIZE_OF_SECCOMP_DATA = 64
CONSTANT_ALLOW_CODES = {0x20, 0x05, 0x15, 0x25, 0x35, 0x45, 0x54, 0x06}
"""What seccomp_is_const_allow() of the kernel follows: LD ABS (nr, arch), JA, JEQ, JGT, JGE, JSET, AND, RET (all K)."""


@dataclass(frozen=True)
class Call:
    """One system call."""

    arch: int
    number: int
    args: tuple[int, ...] = ()

    def data(self) -> bytes:
        """``struct seccomp_data``."""
        args = (*self.args, 0, 0, 0, 0, 0, 0)[:6]
        return struct.pack("<iIQ6Q", self.number - (1 << 32 if self.number >> 31 else 0), self.arch, 0, *args)


@dataclass(frozen=True)
class Outcome:
    """What the program returned, and which instructions it took."""

    action: int
    trace: tuple[int, ...]


@lru_cache(maxsize=64)
def decode(program: bytes) -> list[tuple[int, int, int, int]]:
    """(code, jt, jf, k) of each instruction, after the checks the kernel makes when a program is installed."""
    assert program
    assert len(program) % 8 == 0
    ops = list(struct.iter_unpack("<HBBI", program))
    assert len(ops) <= 4096
    for place, (code, jt, jf, k) in enumerate(ops):
        if code == 0x05:
            assert place + 1 + k < len(ops), "a jump leaves the program"
        elif code & 7 == 5:
            assert place + 1 + max(jt, jf) < len(ops), "a jump leaves the program"
        if code == 0x20:
            assert k % 4 == 0
            assert k < SIZE_OF_SECCOMP_DATA
    assert ops[-1][0] & 7 == 6, "the last instruction must return"
    return ops


def simulate(program: bytes, call: Call) -> Outcome:
    """Run the program for one call."""
    ops, data = decode(program), call.data()
    a = x = place = 0
    memory: list[int | None] = [None] * 16
    trace = []
    while True:
        code, jt, jf, k = ops[place]
        trace.append(place)
        place += 1
        match code:
            case 0x20:
                (a,) = struct.unpack_from("<I", data, k)
            case 0x60:
                value = memory[k]
                assert value is not None, "scratch memory is read before it is written"
                a = value
            case 0x02:
                memory[k] = a
            case 0x07:
                x = a
            case 0x04:
                a = (a + k) & U32
            case 0x0C:
                a = (a + x) & U32
            case 0x54:
                a &= k
            case 0x05:
                place += k
            case 0x15:
                place += jt if a == k else jf
            case 0x25:
                place += jt if a > k else jf
            case 0x35:
                place += jt if a >= k else jf
            case 0x3D:
                place += jt if a >= x else jf
            case 0x06:
                return Outcome(k, tuple(trace))
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


def constant_allow(program: bytes, arch: int, number: int) -> bool:
    """True if the kernel can see, from number and architecture alone, that the call is always allowed."""
    outcome = simulate(program, Call(arch, number))
    ops = decode(program)
    return outcome.action == ALLOW and all(
        ops[place][0] in CONSTANT_ALLOW_CODES and (ops[place][0] != 0x20 or ops[place][3] in (0, 4))
        for place in outcome.trace
    )
