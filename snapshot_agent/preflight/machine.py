"""What this machine is: kernel, processor, cgroups, libc, mounts and room, read from the kernel's own files."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hotstart.linux import procfs
from hotstart.snapshot_agent.preflight.cpuid import xsave_bytes
from hotstart.snapshot_agent.sandbox import cgroups

_CPUINFO_BYTES = 16 << 10
"""The first processor's paragraph fits in this; a 256-core machine's whole file costs milliseconds."""


@dataclass(frozen=True)
class Machine:
    """Facts that decide whether a snapshot can run here; the machine's part of ``catalog.manifest.Facts``."""

    kernel: str
    machine: str
    cpu_model: str
    cpu_flags: frozenset[str]
    xsave_bytes: int
    cgroup: str
    libc: str
    page_size: int
    lsm: tuple[str, ...]


@dataclass(frozen=True)
class Room:
    """What is free, in bytes, and whether programs may be mapped from the place."""

    disk_bytes: int
    memory_bytes: int
    noexec: bool


@cache
def machine() -> Machine:
    """Gather the facts of this machine (once per process: none of them changes while it runs)."""
    model, flags = parse_cpuinfo(_read("/proc/cpuinfo", _CPUINFO_BYTES))
    return Machine(
        kernel=platform.release(),
        machine=platform.machine(),
        cpu_model=model,
        cpu_flags=flags,
        xsave_bytes=xsave_bytes(),
        cgroup=cgroups.mode(cgroups.hierarchies(procfs.mountinfo("self"))),
        libc=_libc(),
        page_size=os.sysconf("SC_PAGE_SIZE"),
        lsm=tuple(name for name in _read("/sys/kernel/security/lsm").strip().split(",") if name),
    )


def room(directory: Path) -> Room:
    """Free room at ``directory``, or at its nearest parent that exists."""
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    disk = os.statvfs(place)
    return Room(
        disk_bytes=disk.f_bavail * disk.f_frsize,
        memory_bytes=available_memory(_read("/proc/meminfo")),
        noexec=bool(disk.f_flag & os.ST_NOEXEC),
    )


def parse_cpuinfo(text: str) -> tuple[str, frozenset[str]]:
    """Model and feature flags of the first processor (x86: ``flags``, arm64: ``Features``) (pure)."""
    first = text.partition("\n\n")[0]
    fields: dict[str, str] = {}
    for line in first.splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    model = fields.get("model name") or " ".join(
        f"{key} {fields[key]}" for key in ("CPU implementer", "CPU part") if key in fields
    )
    return model, frozenset((fields.get("flags") or fields.get("Features") or "").split())


def available_memory(meminfo: str) -> int:
    """MemAvailable of /proc/meminfo in bytes; 0 if the line is missing (pure)."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""  # not glibc


def _read(path: str, limit: int = 1 << 20) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            chunks = []
            size = 0
            while size < limit and (chunk := file.read(limit - size)):
                chunks.append(chunk)
                size += len(chunk)
    except OSError:
        return ""
    return b"".join(chunks).decode(errors="replace")
