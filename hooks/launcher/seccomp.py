"""The launcher's seccomp filter as a BPF program (pure): io_uring is answered with ENOSYS, all else is allowed.

CRIU cannot dump an io_uring, and libuv opens one for batching epoll without a switch against it; on ENOSYS (not on
EPERM) it falls back by itself.
"""

from __future__ import annotations

import struct

IO_URING = (425, 426, 427)
"""io_uring_setup, _enter, _register: the same numbers on every architecture below."""
ARCHITECTURES = (0xC000003E, 0x40000003, 0xC00000B7, 0x40000028)
"""AUDIT_ARCH_ of x86-64 and i386, aarch64 and arm: 32-bit calls must not be a way around."""
X32 = 0x40000000
"""Bit that marks the x32 variant of a call on x86-64."""
ALLOW = 0x7FFF0000
ENOSYS = 0x00050000 | 38

_LOAD, _AND, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_NR, _ARCH = 0, 4
"""Offsets in struct seccomp_data."""


def program() -> bytes:
    """The filter as an array of ``struct sock_filter``."""
    lines: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, _ARCH)]
    for position, architecture in enumerate(ARCHITECTURES):
        # a match jumps over the remaining comparisons and the RETURN after them
        lines.append((_JUMP_IF_EQUAL, len(ARCHITECTURES) - position, 0, architecture))
    lines.append((_RETURN, 0, 0, ALLOW))
    lines.append((_LOAD, 0, 0, _NR))
    lines.append((_AND, 0, 0, 0xFFFFFFFF & ~X32))
    for position, number in enumerate(IO_URING):
        lines.append((_JUMP_IF_EQUAL, len(IO_URING) - position, 0, number))
    lines.append((_RETURN, 0, 0, ALLOW))
    lines.append((_RETURN, 0, 0, ENOSYS))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
