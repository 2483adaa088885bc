"""What the machine does to measurements: memory that a host backs lazily is slow the first time it is touched."""

from __future__ import annotations

import mmap
import time

_STEP = 2 << 20


def touch_memory(limit_bytes: int = 8 << 30) -> float:
    """Write to every page of up to ``limit_bytes`` of free memory and give it back; returns GB/s.

    Well below 1 GB/s says that the machine's memory was cold: its host had to find pages first.
    """
    size = min(limit_bytes, _available() // 2) // _STEP * _STEP
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    began = time.monotonic()
    memory.madvise(23)  # MADV_POPULATE_WRITE
    seconds = time.monotonic() - began
    memory.close()
    return size / seconds / 1e9


def _available() -> int:
    with open("/proc/meminfo") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")
