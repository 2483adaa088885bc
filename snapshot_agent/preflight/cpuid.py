"""The size of this CPU's extended state, which no file tells: the CPUID instruction itself.

A worker's registers are restored from an XSAVE area of the size that the capturing CPU had.  /proc/cpuinfo names the
features but not the layout, and the layout differs between vendors (PKRU lies at another offset on AMD), so the size is
asked of the CPU.
"""

from __future__ import annotations

import ctypes
import mmap
import platform

_XSTATE_LEAF = 0xD
# cpuid(leaf: edi, subleaf: esi, out: rdx): push rbx; mov r8,rdx; mov eax,edi; mov ecx,esi; cpuid;
# mov [r8],eax; mov [r8+4],ebx; mov [r8+8],ecx; mov [r8+12],edx; pop rbx; ret
_CODE = bytes.fromhex("53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")


def cpuid(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
    """EAX, EBX, ECX, EDX of one CPUID leaf (x86-64).

    Raises OSError where executable memory is refused (a hardened kernel), or on another machine.
    """
    if platform.machine() != "x86_64":
        raise OSError(f"{platform.machine()} has no CPUID")
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(_CODE)
        anchor = ctypes.c_char.from_buffer(page)
        out = (ctypes.c_uint32 * 4)()
        call = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32))
        call(ctypes.addressof(anchor))(leaf, subleaf, out)
        del anchor  # the mapping cannot be closed while it is referenced
        return out[0], out[1], out[2], out[3]


def xsave_bytes() -> int:
    """Bytes of an XSAVE area for the features that the kernel enabled; 0 where that is not known."""
    try:
        highest = cpuid(0, 0)[0]
        return cpuid(_XSTATE_LEAF, 0)[1] if highest >= _XSTATE_LEAF else 0
    except OSError:
        return 0
