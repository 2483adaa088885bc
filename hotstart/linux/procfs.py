"""Files of /proc as values: pure parsers, and thin readers that raise OSError when the process is gone."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_OCTAL = re.compile(rb"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of /proc/PID/mountinfo."""

    mount_id: int
    parent_id: int
    device: str
    """``major:minor`` of the file system."""
    root: str
    """The part of the file system that is mounted."""
    point: str
    """Where, relative to the root of the process."""
    options: frozenset[str]
    """Of this mount: ``ro``, ``nosuid`` …"""
    fstype: str
    source: str
    super_options: str
    """Of the file system, as one string."""


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that Hotstart needs."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    start: int
    """Clock ticks after boot."""


class Status(NamedTuple):
    """The fields of /proc/PID/status that Hotstart needs."""

    name: str
    parent: int
    tracer: int
    uids: tuple[int, ...]
    """Real, effective, saved, file system."""
    gids: tuple[int, ...]
    ns_pids: tuple[int, ...]
    """The pid in the reader's pid namespace first, in the process's own last."""
    seccomp: int
    capabilities: int
    """The effective set."""


class CgroupEntry(NamedTuple):
    """One line of /proc/PID/cgroup; no controllers: the v2 hierarchy."""

    controllers: tuple[str, ...]
    path: str


def parse_mountinfo(data: bytes) -> list[Mount]:
    """All mounts in the order of the file: later ones cover earlier ones at the same point."""
    mounts = []
    for line in data.splitlines():
        left, _, right = line.partition(b" - ")
        mount_id, parent_id, device, root, point, options = left.split(b" ")[:6]
        fstype, source, super_options = [*right.split(b" ", 2), b"", b""][:3]
        mounts.append(
            Mount(
                int(mount_id),
                int(parent_id),
                device.decode(),
                _path(root),
                _path(point),
                frozenset(options.decode().split(",")),
                fstype.decode(),
                _path(source),
                _path(super_options),
            )
        )
    return mounts


def parse_stat(data: bytes) -> Stat:
    """/proc/PID/stat; the name may hold spaces and brackets."""
    opened, closed = data.index(b"("), data.rindex(b")")
    rest = data[closed + 2 :].split()
    name = data[opened + 1 : closed].decode(errors="replace")
    return Stat(int(data[:opened]), name, rest[0].decode(), int(rest[1]), int(rest[3]), int(rest[19]))


def parse_status(data: bytes) -> Status:
    """/proc/PID/status."""
    fields = dict(line.split(b":\t", 1) for line in data.splitlines() if b":\t" in line)

    def numbers(key: bytes) -> tuple[int, ...]:
        return tuple(int(word) for word in fields[key].split())

    return Status(
        fields[b"Name"].decode(errors="replace"),
        int(fields[b"PPid"]),
        int(fields[b"TracerPid"]),
        numbers(b"Uid"),
        numbers(b"Gid"),
        numbers(b"NSpid"),
        int(fields.get(b"Seccomp", b"0")),
        int(fields[b"CapEff"], 16),
    )


def parse_cgroup(data: bytes) -> list[CgroupEntry]:
    """/proc/PID/cgroup."""
    entries = []
    for line in data.splitlines():
        _number, controllers, path = line.split(b":", 2)
        entries.append(CgroupEntry(tuple(controllers.decode().split(",")) if controllers else (), os.fsdecode(path)))
    return entries


def parse_rollup(data: bytes) -> dict[str, int]:
    """/proc/PID/smaps_rollup: names to bytes."""
    sizes = {}
    for line in data.splitlines()[1:]:  # the first line is the address range
        name, _, value = line.partition(b":")
        number, unit = value.split()
        if unit == b"kB":
            sizes[name.decode()] = int(number) * 1024
    return sizes


def read(pid: int | str, name: str) -> bytes:
    """The content of ``/proc/PID/NAME``; ``pid`` may be ``self``."""
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()


def mountinfo(pid: int | str) -> list[Mount]:
    """The mounts that ``pid`` sees."""
    return parse_mountinfo(read(pid, "mountinfo"))


def stat(pid: int | str) -> Stat:
    """Name, state, parent and start of ``pid``."""
    return parse_stat(read(pid, "stat"))


def status(pid: int | str) -> Status:
    """Identities of ``pid``."""
    return parse_status(read(pid, "status"))


def cgroups(pid: int | str) -> list[CgroupEntry]:
    """The cgroups of ``pid``, as paths in the reader's cgroup namespace."""
    return parse_cgroup(read(pid, "cgroup"))


def rollup(pid: int | str) -> dict[str, int]:
    """Memory of ``pid`` by kind, in bytes; empty for a zombie."""
    try:
        return parse_rollup(read(pid, "smaps_rollup"))
    except ProcessLookupError:  # ESRCH: it has no memory any more
        return {}


def pids() -> list[int]:
    """All processes that the reader sees."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children(pid: int) -> list[int]:
    """The children of all threads of ``pid``; needs CONFIG_PROC_CHILDREN."""
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        found += [int(word) for word in read(pid, f"task/{thread}/children").split()]
    return found


def namespace(pid: int | str, kind: str) -> str:
    """Identity of a namespace of ``pid``: ``pid:[4026531836]``."""
    return os.readlink(f"/proc/{pid}/ns/{kind}")


def _path(field: bytes) -> str:
    """A field with its octal escapes (space, tab, newline, backslash) undone."""
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field))
