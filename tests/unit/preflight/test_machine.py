"""Facts of this machine, against what other sources say of it."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from hotstart.snapshot_agent.preflight import cpuid, machine

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Processor
flags\t\t: fpu sse2 avx2

processor\t: 1
flags\t\t: other
"""
ARM = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd sve
CPU implementer\t: 0x41
CPU part\t: 0xd40

processor\t: 1
"""


def test_cpuinfo_of_both_kinds() -> None:
    assert machine.parse_cpuinfo(X86) == ("Intel(R) Xeon(R) Processor", {"fpu", "sse2", "avx2"})
    model, flags = machine.parse_cpuinfo(ARM)
    assert model == "CPU implementer 0x41 CPU part 0xd40"
    assert flags == {"fp", "asimd", "sve"}
    assert machine.parse_cpuinfo("") == ("", frozenset())


def test_meminfo() -> None:
    assert machine.available_memory("MemTotal: 10 kB\nMemAvailable:       5 kB\n") == 5 << 10
    assert machine.available_memory("") == 0


def test_this_machine() -> None:
    here = machine.machine()
    assert here.kernel == os.uname().release
    assert here.cgroup in {"v1", "v2", "hybrid"}
    assert here.page_size == os.sysconf("SC_PAGESIZE")
    assert here.cpu_flags, "every CPU that runs this has features"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="CPUID is x86")
def test_cpuid_agrees_with_the_kernel() -> None:
    eax, ebx, ecx, edx = cpuid.cpuid(0, 0)
    vendor = b"".join(word.to_bytes(4, "little") for word in (ebx, edx, ecx)).decode()
    text = Path("/proc/cpuinfo").read_text()
    assert f"vendor_id\t: {vendor}" in text
    assert f"cpuid level\t: {eax}" in text
    # The kernel's minimal signal frame (AT_MINSIGSTKSZ) is the XSAVE area and about a kilobyte around it.
    auxiliary = dict(_pairs(Path("/proc/self/auxv").read_bytes()))
    if 51 in auxiliary:
        assert 0 < auxiliary[51] - cpuid.xsave_bytes() < 2048


def _pairs(data: bytes) -> list[tuple[int, int]]:
    words = memoryview(data).cast("Q")
    return list(zip(words[::2], words[1::2], strict=True))


def _free(place: Path) -> int:
    words = subprocess.run(["df", "-B1", "--output=avail", place], capture_output=True, check=True).stdout.split()
    return int(words[1])


def test_room_of_a_place_that_does_not_exist_yet(tmp_path: Path) -> None:
    """Others write to the disk meanwhile, gigabytes at times: the answer must be right at one of several moments."""
    for _ in range(20):
        before, room, after = _free(tmp_path), machine.room(tmp_path / "a" / "b"), _free(tmp_path)
        if min(before, after) <= room.disk_bytes <= max(before, after):
            break
    else:
        raise AssertionError(f"{room.disk_bytes} bytes are free, df says {before} and {after}")
    assert room.memory_bytes > 0
