"""A process by identity: its pid and its start time, because a pid alone may be taken by another one later."""

from __future__ import annotations

import os


def start_time(pid: int) -> int:
    """When ``pid`` started, in clock ticks after boot (proc(5), field 22).  Raises ProcessLookupError if it is gone."""
    return int(_stat_fields(pid)[19])


def alive(pid: int, start: int) -> bool:
    """True while the process ``pid`` that started at ``start`` lives; a zombie does not."""
    try:
        fields = _stat_fields(pid)
    except ProcessLookupError:
        return False
    return int(fields[19]) == start and fields[0] not in (b"Z", b"X")


def open_pidfd(pid: int, start: int) -> int:
    """A pidfd of exactly this process; the caller closes it.  Raises ProcessLookupError if it is gone."""
    fd = os.pidfd_open(pid)
    try:
        if start_time(pid) != start:  # read after the open: the descriptor now pins whoever has the pid
            raise ProcessLookupError(f"pid {pid} is another process by now")
    except BaseException:
        os.close(fd)
        raise
    return fd


def boot_id() -> str:
    """Names this boot of the machine: pids and start times mean nothing under another one."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _stat_fields(pid: int) -> list[bytes]:
    """Fields of /proc/PID/stat from the third (state) on; the second may hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise ProcessLookupError(f"there is no process {pid}") from None
    return data[data.rindex(b")") + 2 :].split()
