"""Files outside a snapshot that a worker has mapped or open: which they are, and whether they are the same here.

Files of the worker's own (written since it started: the overlay's upper directory, tmpfs) travel with the snapshot.
All others, libraries above all, are looked up at the restore, where another version under the same name would be mapped
into the middle of a running program.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotstart.linux import procfs
from hotstart.linux.syscalls import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, openat2
from hotstart.snapshot_agent.catalog.manifest import FileIdentity

_MAPS_LINE = re.compile(rb"[0-9a-f]+-[0-9a-f]+ (....) [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ (\d+) *(.*)")
_DELETED = b" (deleted)"


@dataclass(frozen=True)
class Place:
    """A directory (or file) of the sandbox and where its content lies on the host."""

    target: str
    """Path inside the sandbox, ``/`` for its root."""
    source: str
    """Path on the host."""


@dataclass(frozen=True)
class Mapped:
    """What the mappings of some processes say."""

    paths: frozenset[str]
    """Files that are mapped, as the sandbox names them."""
    anonymous_executable: bool
    """True if some private anonymous memory is executable (a JIT)."""


def parse_maps(text: bytes) -> Mapped:
    """Read ``/proc/PID/maps`` (pure)."""
    paths: set[bytes] = set()
    executable = False
    for line in text.splitlines():
        match = _MAPS_LINE.match(line)
        if match is None:
            continue
        flags, inode, path = match.groups()
        if path.startswith(b"/"):
            if inode != b"0" and not path.endswith(_DELETED):
                paths.add(path)
        elif flags[2:4] == b"xp" and (not path or path == b"[heap]" or path.startswith(b"[anon:")):
            executable = True
    return Mapped(frozenset(os.fsdecode(path) for path in paths), executable)


def mapped(pids: Iterable[int]) -> Mapped:
    """What the processes have mapped; those that are gone by now are left out."""
    paths: set[str] = set()
    executable = False
    for pid in pids:
        try:
            one = parse_maps(procfs.read(pid, "maps"))
        except (FileNotFoundError, ProcessLookupError):
            continue
        paths |= one.paths
        executable |= one.anonymous_executable
    return Mapped(frozenset(paths), executable)


def opened(pids: Iterable[int]) -> frozenset[str]:
    """Regular files that the processes hold open, as the sandbox names them."""
    paths: set[str] = set()
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except (FileNotFoundError, ProcessLookupError):
            continue
        for name in names:
            link = f"/proc/{pid}/fd/{name}"
            try:
                path = os.readlink(link)
                if path.startswith("/") and not path.endswith(" (deleted)") and stat.S_ISREG(os.stat(link).st_mode):
                    paths.add(path)
            except OSError:
                continue  # closed in the meantime
    return frozenset(paths)


def not_carried(paths: Iterable[str], upper: Path | None, tmpfs: Iterable[str]) -> set[str]:
    """Those of ``paths`` that no snapshot carries: neither changed below ``upper`` nor on a tmpfs of the sandbox."""
    carried = tuple(point.rstrip("/") + "/" for point in tmpfs)
    outside = {path for path in paths if not path.startswith(carried)}
    if upper is None:
        return outside
    fd = os.open(upper, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return {path for path in outside if not _is_below(fd, path.lstrip("/"))}
    finally:
        os.close(fd)


def _is_below(directory: int, path: str) -> bool:
    try:
        os.close(openat2(directory, path, os.O_PATH, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS))
    except OSError:
        return False
    return True


def place_of(path: str, places: Sequence[Place]) -> tuple[Place, str] | None:
    """The innermost place that holds ``path``, and the path relative to it (pure)."""
    best: Place | None = None
    for place in places:
        inside = path == place.target or path.startswith(place.target.rstrip("/") + "/")
        if inside and (best is None or len(place.target) > len(best.target)):
            best = place
    return None if best is None else (best, path[len(best.target) :].lstrip("/"))


def identities(paths: Iterable[str], places: Sequence[Place]) -> list[FileIdentity]:
    """Size and time of the regular files among ``paths``, sorted; files that are not there, or elsewhere, are left out.

    The paths come from a worker or a manifest: they are opened below their place without following a link.
    """
    roots: dict[str, int] = {}
    found: list[FileIdentity] = []
    try:
        for path in sorted(paths):
            held = place_of(path, places)
            if held is None:
                continue
            place, rest = held
            status = _status(place, rest, roots)
            if status is not None and stat.S_ISREG(status.st_mode):
                found.append(FileIdentity(path=path, bytes=status.st_size, mtime_ns=status.st_mtime_ns))
    finally:
        for fd in roots.values():
            os.close(fd)
    return found


def _status(place: Place, rest: str, roots: dict[str, int]) -> os.stat_result | None:
    try:
        if not rest:
            return os.stat(place.source)
        if place.source not in roots:
            roots[place.source] = os.open(place.source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        fd = openat2(roots[place.source], rest, os.O_PATH, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
    except OSError:
        return None
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)
