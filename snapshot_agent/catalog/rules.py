"""What a manifest must satisfy beyond its types (pure)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from hotstart import naming
from hotstart.errors import HotstartError
from hotstart.reasons import MANIFEST_INVALID
from hotstart.snapshot_agent.catalog.manifest import MANIFEST_FILE, MEMORY_FILE, TABLE_FILE, Manifest, SandboxEntry

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_COMPONENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+@:-]*")


def check(manifest: Manifest) -> None:
    """Raise ``manifest-invalid`` with the first thing that is wrong."""
    for wrong in _wrong(manifest):
        raise HotstartError(MANIFEST_INVALID, f"the manifest is not valid: {wrong}")


def _wrong(manifest: Manifest) -> Iterator[str]:
    if not naming.valid(manifest.name):
        yield f"name {manifest.name[:80]!r} is no name of a snapshot"
    if not _is_time(manifest.created):
        yield f"created {manifest.created[:80]!r} is no time with a zone"
    yield from _files(manifest)
    yield from _tmpfs(manifest)
    yield from _processes(manifest)
    yield from _sandbox(manifest.sandbox)
    yield from _numbers(manifest)


def _files(manifest: Manifest) -> Iterator[str]:
    seen: set[str] = set()
    directories: set[str] = set()
    for file in manifest.files:
        parts = file.path.split("/")
        if len(file.path) > 1000 or not all(_COMPONENT.fullmatch(part) for part in parts):
            yield f"{file.path[:80]!r} is no path of a snapshot's file"
        if file.path in seen or file.path == MANIFEST_FILE:
            yield f"file {file.path} is listed twice or cannot be listed"
        if file.bytes < 0 or not _DIGEST.fullmatch(file.digest):
            yield f"file {file.path} has no proper size and digest"
        seen.add(file.path)
        directories.update("/".join(parts[:end]) for end in range(1, len(parts)))
    if seen & directories:
        yield f"{min(seen & directories)} is a file and a directory"
    digests = {file.path: file.digest for file in manifest.files}
    if digests.get(MEMORY_FILE) != digests.get(TABLE_FILE):
        yield "the memory file does not have the digest of its table"


def _tmpfs(manifest: Manifest) -> Iterator[str]:
    listed = {file.path for file in manifest.files}
    for entry in manifest.tmpfs:
        if entry.path not in listed:
            yield f"the archive of {entry.target[:80]!r} is not among the files"
        if not _is_absolute(entry.target):
            yield f"tmpfs {entry.target[:80]!r} is no absolute path"
    if _repeats(entry.target for entry in manifest.tmpfs) or _repeats(entry.path for entry in manifest.tmpfs):
        yield "a tmpfs is listed twice"


def _processes(manifest: Manifest) -> Iterator[str]:
    pids = set(manifest.pids)
    if len(pids) != len(manifest.pids) or min(pids, default=0) <= 0 or manifest.root_pid not in pids:
        yield "its pids are not positive, not different, or without the root's"
    for verdict in manifest.verdicts:
        if verdict.pid not in pids or verdict.mode not in ("mapped", "copied"):
            yield f"the verdict on pid {verdict.pid} is none"
        numbers = (verdict.mapped_bytes, verdict.copied_bytes, verdict.kept_bytes, verdict.empty_bytes)
        if min(*numbers, verdict.filters, *verdict.ranges.values(), 0) < 0:
            yield f"the verdict on pid {verdict.pid} counts below zero"
    if _repeats(verdict.pid for verdict in manifest.verdicts):
        yield "there are two verdicts on one pid"
    if _repeats(manifest.memory_ids) or min(manifest.memory_ids, default=1) <= 0:
        yield "the memory's file ids are not positive and different"
    if len(manifest.stdio.names) != 3:
        yield "the worker's standard streams are not three"


def _sandbox(sandbox: SandboxEntry) -> Iterator[str]:
    if not sandbox.command or not all((sandbox.command[0], *sandbox.env)) or any("=" in name for name in sandbox.env):
        yield "its command or a variable's name is empty or impossible"
    if min(sandbox.uid, sandbox.gid, *sandbox.groups) < 0:
        yield "a user or group is below zero"
    volumes = [path for volume in sandbox.volumes for path in (volume.source, volume.target)]
    for path in (sandbox.cwd, sandbox.rootfs, *sandbox.tmpfs, *volumes):
        if not _is_absolute(path):
            yield f"{path[:80]!r} is no absolute path"
    if any("\0" in text for text in (*sandbox.command, *sandbox.env, *sandbox.env.values())):
        yield "a word of the command or of the environment holds a NUL"


def _numbers(manifest: Manifest) -> Iterator[str]:
    sizes = manifest.sizes
    for field in sizes.__struct_fields__:
        if getattr(sizes, field) < 0:
            yield f"{field} is below zero"
    timings = manifest.timings
    times = [timings.total_s, timings.unaccounted_s, timings.frozen_s, timings.cold_start_s]
    if not all(math.isfinite(value) and value >= 0 for value in times):
        yield "a time is below zero"
    if not all(math.isfinite(s.start_s) and math.isfinite(s.end_s) and s.end_s >= s.start_s for s in timings.spans):
        yield "a phase ends before it begins"
    if manifest.facts.page_size <= 0:
        yield "the page size is none"


def _is_absolute(path: str) -> bool:
    parts = path.split("/")
    return path.startswith("/") and "\0" not in path and ".." not in parts


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _repeats(items: Iterable[object]) -> bool:
    listed = list(items)
    return len(set(listed)) != len(listed)
