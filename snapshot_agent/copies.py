"""Copies of a snapshot: planned once, restored side by side, each with its own fall-back to the cold start."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.hooks.control.directory import new_nonce
from hotstart.hooks.control.protocol import Adoption
from hotstart.phases import Phases
from hotstart.reasons import INTERNAL, MEMORY_FILE_INVALID, SANDBOX_EXISTS, SNAPSHOT_DAMAGED
from hotstart.snapshot_agent.catalog import stamp
from hotstart.snapshot_agent.catalog.manifest import Manifest, SandboxEntry
from hotstart.snapshot_agent.catalog.store import SnapshotHandle
from hotstart.snapshot_agent.catalog.verify import Damage, verify
from hotstart.snapshot_agent.criu import bundle, kerndat
from hotstart.snapshot_agent.memory import reader
from hotstart.snapshot_agent.preflight import checks
from hotstart.snapshot_agent.restore import pipeline, unmapped
from hotstart.snapshot_agent.sandbox import local
from hotstart.snapshot_agent.sandbox.contract import Sandbox, SandboxSpec, Volume

Told = Callable[[str, float], None]


@dataclass(frozen=True)
class RestoreResult:
    """What became of one copy.  ``outcome``: ``restored``, or ``cold`` or ``removed`` with the reason."""

    name: str
    outcome: str
    address: str
    phases: dict[str, Any]
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    engine_facts: dict[str, float | int | str] = field(default_factory=dict)
    """What the engine said of its resume: seconds of each step."""
    reason: str = ""
    detail: str = ""


def source(
    home: Path, handle: SnapshotHandle, work: Path, copies: int, *, force_copy: bool, told: Told
) -> pipeline.Source:
    """Decide how a leased snapshot is restored here; raises the reason why it cannot be."""
    criu = bundle.find(home)
    manifest = handle.manifest
    version = checks.criu_version(criu, home)
    findings = checks.check_restore(manifest, home, criu=version, preload=criu.preload, copies=copies)
    fatal = [finding for finding in findings if finding.fatal]
    if fatal:
        first = fatal[0]
        raise HotstartError(
            first.reason, f"{first.subject}: {first.found}, {first.needed} is needed", next_step=first.what_to_do
        )
    if not stamp.trusted(home, handle):
        damage = check(handle, told)
        if damage:
            raise HotstartError(SNAPSHOT_DAMAGED, f"{damage[0].path} {damage[0].what}")
        stamp.write(home, handle)
    images = handle.path / "skeleton"
    if force_copy:
        images = work / "skeleton"
        unmapped.unmapped_images(handle.path / "skeleton", images, manifest.memory_ids)
        extents = unmapped.unmapped_extents(reader.read_table(handle.path / "memory.table").extents)
    else:
        extents = pipeline.copied_extents(handle.path, manifest)
    return pipeline.Source(handle.path, manifest, criu, kerndat.cached(home, criu), images, extents)


def check(handle: SnapshotHandle, told: Told) -> list[Damage]:
    """Every damaged file of a snapshot."""

    def memory(path: Path, table: Path, progress: Callable[[int, int], None]) -> list[str]:
        try:
            return reader.verify(path, reader.read_table(table), progress)
        except HotstartError as error:
            if error.reason is MEMORY_FILE_INVALID:
                return [f"cannot be checked: {error.detail}"]
            raise

    return verify(handle, lambda fraction: told("verify", fraction), verify_memory=memory)


def spec_of(entry: SandboxEntry, name: str) -> SandboxSpec:
    """The sandbox of a copy: the source's, under another name."""
    return SandboxSpec(
        name=name,
        command=tuple(entry.command),
        env=dict(entry.env),
        cwd=entry.cwd,
        uid=entry.uid,
        gid=entry.gid,
        groups=tuple(entry.groups),
        rootfs=entry.rootfs,
        tmpfs=tuple(entry.tmpfs),
        volumes=tuple(Volume(v.source, v.target, v.read_only) for v in entry.volumes),
        engine=entry.engine,
        labels=dict(entry.labels),
    )


def check_names(home: Path, names: Sequence[str]) -> None:
    """Raise ``sandbox-exists`` for a name that is taken, or wanted twice, before anything is made."""
    taken = {sandbox.name for sandbox in local.list_all(home)} | set(local.unreadable(home))
    for name in names:
        if name in taken:
            raise HotstartError(SANDBOX_EXISTS, f"there is a sandbox {name} already")
        taken.add(name)


def restore_all(
    home: Path,
    manifest: Manifest,
    plan: pipeline.Source | HotstartError,
    names: Sequence[str],
    work: Path,
    deadline: Deadline,
    planning: Phases,
    *,
    cold_start: bool,
    told: Told,
) -> list[RestoreResult]:
    """Restore all copies side by side; an interrupt, or anything that is no HotstartError, removes every one of them.

    Raises the first failure if no copy is left at all.
    """
    made: list[str] = []

    def one(name: str) -> RestoreResult | HotstartError:
        phases = Phases(began=planning.began)
        phases.spans += planning.spans
        try:
            result = restore_one(home, manifest, plan, name, work, deadline, phases, made, cold_start=cold_start)
        except HotstartError as error:
            return error
        told("restore", len(made) / len(names))
        return result

    told("restore", 0.0)
    pool = ThreadPoolExecutor(len(names)) if len(names) > 1 else None
    try:
        if pool is None:
            results = [one(names[0])]
        else:
            with pool:
                results = _together(home, pool, one, names, made)
    except BaseException:
        for name in made:
            _remove(home, name)
        raise
    if not any(isinstance(result, RestoreResult) for result in results):
        raise next(result for result in results if isinstance(result, HotstartError))
    return [
        result if isinstance(result, RestoreResult) else _removed(name, result)
        for name, result in zip(names, results, strict=True)
    ]


def _together(
    home: Path,
    pool: ThreadPoolExecutor,
    one: Callable[[str], RestoreResult | HotstartError],
    names: Sequence[str],
    made: Sequence[str],
) -> list[RestoreResult | HotstartError]:
    """Results in order; the first exception ends the other copies, so that nobody waits for them."""
    futures = [pool.submit(one, name) for name in names]
    try:
        wait(futures, return_when=FIRST_EXCEPTION)
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        for name in list(made):
            _remove(home, name)  # its thread sees that the sandbox has ended
        raise


def restore_one(
    home: Path,
    manifest: Manifest,
    plan: pipeline.Source | HotstartError,
    name: str,
    work: Path,
    deadline: Deadline,
    phases: Phases,
    made: list[str],
    *,
    cold_start: bool,
) -> RestoreResult:
    """Restore one copy, or let it cold start and say why; an interrupt removes the copy.

    Its name is added to ``made`` as soon as there is something to remove.
    """
    spec = spec_of(manifest.sandbox, name)

    def make() -> Sandbox:
        sandbox = local.create(home, spec, placeholder=True, restored_from=manifest.name)
        made.append(name)
        return sandbox

    try:
        if isinstance(plan, HotstartError):
            raise plan
        restored = pipeline.restore(plan, make, work, deadline, phases)
    except pipeline.Failed as failed:
        cause = failed.__cause__
        if not isinstance(cause, Exception) or not cold_start:
            _remove(home, name)
            raise cause if cause is not None else failed from None
        sandbox = failed.sandbox
        if not _lives(sandbox):  # the worker died as it woke up, and its supervisor ended with it
            _remove(home, name)
            sandbox = make()
        return _cold(sandbox, cause, phases)
    except HotstartError as error:
        if not cold_start or name in made:
            raise
        try:
            sandbox = make()
        except HotstartError as second:
            raise error from second  # what the restore lacked is told: mostly the cold start lacks the same
        return _cold(sandbox, error, phases)
    phases.finish()
    return RestoreResult(
        name,
        "restored",
        restored.sandbox.address,
        phases.to_json(),
        verdicts=[_verdict(v, copied=plan.images.parent != plan.path) for v in manifest.verdicts],
        engine_facts=dict(restored.report.facts) if restored.report else {},
    )


def _cold(sandbox: Sandbox, error: Exception, phases: Phases) -> RestoreResult:
    failure = error if isinstance(error, HotstartError) else HotstartError(INTERNAL, f"{type(error).__name__}: {error}")
    sandbox.control.adopt(Adoption(new_nonce(), cold_start_reason=f"{failure.reason.code}: {failure.detail}"))
    phases.finish()
    return RestoreResult(
        sandbox.name,
        "cold",
        sandbox.address,
        phases.to_json(),
        reason=failure.reason.code,
        detail=failure.detail,
    )


def _removed(name: str, error: HotstartError) -> RestoreResult:
    return RestoreResult(name, "removed", "", {}, reason=error.reason.code, detail=error.detail)


def _lives(sandbox: Sandbox) -> bool:
    try:
        sandbox.alive()
    except HotstartError:
        return False
    return True


def _remove(home: Path, name: str) -> None:
    with contextlib.suppress(HotstartError, OSError):
        local.destroy(home, name, 0.0)


def _verdict(verdict: Any, *, copied: bool) -> dict[str, Any]:
    import msgspec

    told: dict[str, Any] = msgspec.to_builtins(verdict)
    if copied and told["mapped_bytes"]:
        told |= {
            "mode": "copied",
            "reason": "copied-by-choice",
            "copied_bytes": told["copied_bytes"] + told["mapped_bytes"],
            "mapped_bytes": 0,
        }
    return told
