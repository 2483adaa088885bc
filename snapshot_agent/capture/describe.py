"""Writes down a finished capture: sizes, verdicts, phases and digests become the manifest."""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

import hotstart
from hotstart.hooks.control.protocol import Canary, Report
from hotstart.names import ROOT_PID
from hotstart.phases import Phases
from hotstart.snapshot_agent.capture.convert import Converted
from hotstart.snapshot_agent.catalog import manifest as catalog
from hotstart.snapshot_agent.sandbox.contract import Sandbox, SandboxSpec

SKELETON, MEMORY, TABLE, ROOTFS = "skeleton", "memory", "memory.table", "rootfs.tar"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Capture:
    """Everything that a capture found out."""

    name: str
    sandbox: Sandbox
    facts: catalog.Facts
    report: Report | None
    stdio: tuple[str, str, str]
    tmpfs: list[catalog.TmpfsEntry]
    converted: Converted
    files: list[catalog.FileEntry]
    phases: Phases
    frozen_s: float


def manifest(capture: Capture, staging: Path) -> catalog.Manifest:
    """The manifest of the snapshot in ``staging``."""
    converted = capture.converted
    facts = msgspec.structs.replace(capture.facts, executable_memory=converted.executable)
    return catalog.Manifest(
        version=catalog.VERSION,
        hotstart=hotstart.__version__,
        name=capture.name,
        created=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        sandbox=sandbox_entry(capture.sandbox.spec),
        engine=_engine(capture.report),
        facts=facts,
        verdicts=converted.verdicts,
        sizes=_sizes(capture, staging),
        timings=_timings(capture),
        stdio=catalog.Stdio(names=list(capture.stdio)),
        tiles=converted.tiles and "amx_tile" in facts.cpu_flags,
        root_pid=ROOT_PID,
        pids=sorted(set(converted.pids)),
        tmpfs=capture.tmpfs,
        memory_ids=converted.memory_ids,
        files=capture.files,
    )


def sandbox_entry(spec: SandboxSpec) -> catalog.SandboxEntry:
    """The part of the manifest from which placeholders are made."""
    return catalog.SandboxEntry(
        command=list(spec.command),
        env=dict(spec.env),
        cwd=spec.cwd,
        uid=spec.uid,
        gid=spec.gid,
        groups=list(spec.groups),
        rootfs=spec.rootfs,
        tmpfs=list(spec.tmpfs),
        volumes=[catalog.VolumeEntry(source=v.source, target=v.target, read_only=v.read_only) for v in spec.volumes],
        engine=spec.engine,
        labels=dict(spec.labels),
    )


def digest_files(staging: Path) -> list[catalog.FileEntry]:
    """Every file of the snapshot with its digest; the memory file is covered by its table."""
    entries: list[catalog.FileEntry] = []
    table_digest = ""
    for path in sorted(p for p in staging.rglob("*") if p.is_file() and not p.is_symlink()):
        name = path.relative_to(staging).as_posix()
        if name == MEMORY:
            continue
        digest = _digest(path)
        if name == TABLE:
            table_digest = digest
        entries.append(catalog.FileEntry(path=name, bytes=path.stat().st_size, digest=digest))
    entries.append(catalog.FileEntry(path=MEMORY, bytes=(staging / MEMORY).stat().st_size, digest=table_digest))
    return entries


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(_CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def _engine(report: Report | None) -> catalog.EngineEntry:
    if report is None:
        return catalog.EngineEntry(name="none", facts={})
    return catalog.EngineEntry(name=report.engine, facts=dict(report.facts), canary=_canary(report.canary))


def _canary(canary: Canary | None) -> catalog.CanaryEntry | None:
    if canary is None:
        return None
    tokens = [catalog.CanaryTokenEntry(token_id=t.token_id, logprob=t.logprob) for t in canary.tokens]
    return catalog.CanaryEntry(prompt=canary.prompt, tokens=tokens)


def _sizes(capture: Capture, staging: Path) -> catalog.Sizes:
    facts = capture.report.facts if capture.report else {}
    kv, released = _integer(facts.get("kv_bytes", 0)), _integer(facts.get("kv_released_bytes", 0))
    by_name = {f.path: f.bytes for f in capture.files}
    stored = sum(p.lstat().st_blocks * 512 for p in staging.rglob("*"))
    return catalog.Sizes(
        memory_bytes=capture.converted.data_bytes,
        zero_bytes=capture.converted.zero_bytes,
        skeleton_bytes=sum(n for p, n in by_name.items() if p.startswith(f"{SKELETON}/")),
        shared_bytes=capture.converted.shared_bytes,
        rootfs_bytes=by_name.get(ROOTFS, 0),
        tmpfs_bytes=sum(by_name.get(t.path, 0) for t in capture.tmpfs),
        stored_bytes=stored,
        kv_bytes=0 if released else kv,  # what is not given back (parts of a first and last page) was zeroed
        kv_released_bytes=released,
    )


def _integer(value: float | int | str) -> int:
    return int(value) if isinstance(value, int | float) else 0


def _timings(capture: Capture) -> catalog.Timings:
    facts = capture.report.facts if capture.report else {}
    cold = facts.get("cold_start_s", 0)
    spans = sorted(capture.phases.spans, key=lambda p: (p.start, p.end))
    return catalog.Timings(
        total_s=round(capture.phases.total, 6),
        unaccounted_s=round(capture.phases.unaccounted(), 6),
        frozen_s=round(capture.frozen_s, 6),
        spans=[catalog.PhaseEntry(name=p.name, start_s=round(p.start, 6), end_s=round(p.end, 6)) for p in spans],
        cold_start_s=float(cold) if isinstance(cold, int | float) else 0.0,
    )
