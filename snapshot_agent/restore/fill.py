"""What happens while the restored tasks exist and stand still: memory is copied in, and filters are counted.

Mapped memory needs nothing.  Copied ranges are anonymous memory that is filled through ``/proc/PID/mem``, shared
segments through a descriptor of the segment itself.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.linux import procfs
from hotstart.reasons import COPY_FAILED, CRIU_RESTORE
from hotstart.snapshot_agent.catalog.manifest import Verdict
from hotstart.snapshot_agent.memory import copy
from hotstart.snapshot_agent.memory.format import Extent, Kind


def tasks(freezer: Path) -> dict[int, int]:
    """Host pid by pid in the sandbox, for every process in the sandbox's cgroup."""
    found: dict[int, int] = {}
    for word in (freezer / "cgroup.procs").read_text().split():
        try:
            found[procfs.status(int(word)).ns_pids[-1]] = int(word)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def check_filters(verdicts: Sequence[Verdict], hosts: Mapping[int, int]) -> None:
    """Every thread of a mapped process must have its filters: without them mapped memory would be silently wrong."""
    for verdict in verdicts:
        if verdict.mapped_bytes and verdict.pid in hosts:
            task = Path(f"/proc/{hosts[verdict.pid]}/task")
            for tid in task.iterdir():
                have = _filters(tid / "status")
                if have != verdict.filters:
                    raise HotstartError(
                        CRIU_RESTORE,
                        f"thread {tid.name} of process {verdict.pid} ({verdict.name}) has {have} seccomp filters "
                        f"instead of {verdict.filters}",
                    )


def _filters(status: Path) -> int:
    for line in status.read_text().splitlines():
        if line.startswith("Seccomp_filters:"):
            return int(line.split()[1])
    return -1


def fill(memory: Path, extents: Sequence[Extent], hosts: Mapping[int, int], deadline: Deadline) -> int:
    """Copy what is not mapped; returns the bytes copied.  Raises ``copy-failed``, ``deadline``."""
    copied: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    total = 0
    memory_fd = os.open(memory, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for extent in extents:
            if extent.kind is Kind.COPIED:
                copied[extent.pid].append((extent.offset, extent.address, extent.length))
            elif extent.kind is Kind.SHARED:
                total += _fill_segment(memory_fd, extent, _host(hosts, extent.pid), deadline)
        for pid, places in copied.items():
            mem = os.open(f"/proc/{_host(hosts, pid)}/mem", os.O_RDWR | os.O_CLOEXEC)
            try:
                total += copy.copy_into(memory_fd, mem, places, deadline=deadline).bytes
            finally:
                os.close(mem)
    finally:
        os.close(memory_fd)
    return total


def _fill_segment(memory_fd: int, extent: Extent, host: int, deadline: Deadline) -> int:
    name = _mapping_name(host, extent.address)
    try:
        segment = os.open(f"/proc/{host}/map_files/{name}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise HotstartError(
            COPY_FAILED, f"shared memory at {extent.address:#x} of process {extent.pid}: {error}"
        ) from None
    try:
        return copy.fill(memory_fd, segment, [(extent.offset, 0, extent.length)], deadline=deadline).bytes
    finally:
        os.close(segment)


def _mapping_name(host: int, address: int) -> str:
    """The entry of map_files for the mapping that begins at ``address``."""
    prefix = f"{address:x}-"
    with open(f"/proc/{host}/maps") as maps:
        for line in maps:
            if line.startswith(prefix):
                return line.split(" ", 1)[0]
    raise HotstartError(COPY_FAILED, f"process {host} has no mapping at {address:#x}")


def _host(hosts: Mapping[int, int], pid: int) -> int:
    if pid not in hosts:
        raise HotstartError(COPY_FAILED, f"process {pid} of the snapshot is not in the sandbox")
    return hosts[pid]
