"""The façade of the agent: values in, values out.

The command line, benchmarks and the serving stack import only this.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hotstart import naming
from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.findings import Finding
from hotstart.hooks.control.protocol import State
from hotstart.phases import Phases
from hotstart.reasons import CAPTURE_BUSY
from hotstart.snapshot_agent import copies
from hotstart.snapshot_agent.capture import quiesce
from hotstart.snapshot_agent.catalog import stamp
from hotstart.snapshot_agent.catalog.directory import DirectoryStore
from hotstart.snapshot_agent.catalog.manifest import Manifest
from hotstart.snapshot_agent.catalog.verify import Damage
from hotstart.snapshot_agent.copies import RestoreResult
from hotstart.snapshot_agent.criu import bundle as criu_bundle
from hotstart.snapshot_agent.criu import kerndat
from hotstart.snapshot_agent.preflight import checks
from hotstart.snapshot_agent.preflight.doctor import examine
from hotstart.snapshot_agent.restore import pipeline as restore_pipeline
from hotstart.snapshot_agent.sandbox import local, view
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec, Volume

__all__ = [
    "Damage",
    "Finding",
    "Progress",
    "RestoreResult",
    "SandboxInfo",
    "SandboxSpec",
    "SnapshotInfo",
    "Volume",
    "create_snapshot",
    "damaged_snapshots",
    "doctor",
    "inspect_snapshot",
    "log_path",
    "preflight",
    "remove_snapshot",
    "restore",
    "run",
    "sandboxes",
    "snapshots",
    "stop",
    "verify_snapshot",
    "wait_ready",
]

Progress = Callable[[str, float], None]
"""Called with the phase's name and its fraction done (0..1), from any thread."""


@dataclass(frozen=True)
class SandboxInfo:
    """A local sandbox as ``ps`` shows it."""

    name: str
    state: str
    """starting, ready, quiescing, quiesced, resuming, running, failed, cold (fell back to its cold start), exited."""
    address: str
    init_pid: int
    created: str
    command: tuple[str, ...]
    engine: str
    restored_from: str = ""
    reason: str = ""
    exit_status: int | None = None
    private_bytes: int = 0


@dataclass(frozen=True)
class SnapshotInfo:
    """A snapshot as ``list`` shows it; ``manifest`` has all of it."""

    name: str
    path: Path
    manifest: Manifest


def run(home: Path, spec: SandboxSpec) -> SandboxInfo:
    """Make a sandbox and start the command in it; returns as soon as the supervisor runs."""
    _prepare(home)
    return _info(local.create(home, spec, placeholder=False))


def wait_ready(home: Path, name: str, timeout_s: float) -> SandboxInfo:
    """Wait until the engine in the sandbox reports ready (engine none: at once).

    Raises ``deadline``, ``sandbox-dead``, ``no-such-sandbox``.
    """
    sandbox = local.load(home, name)
    deadline = Deadline.after(timeout_s, f"the engine in {name} to be ready")
    while sandbox.spec.engine != "none":
        sandbox.alive()
        report = quiesce.read_report(sandbox.control)
        if report is not None and report.state in (State.READY, State.RESUMED):
            break
        deadline.check()
        time.sleep(deadline.sooner(0.02))
    return _info(sandbox)


def sandboxes(home: Path, *, measure: bool = False) -> list[SandboxInfo]:
    """All local sandboxes; ``measure`` adds the private memory of each."""
    return [_info(sandbox, measure=measure) for sandbox in local.list_all(home)]


def log_path(home: Path, name: str) -> Path:
    """The file that holds what the worker wrote; raises ``no-such-sandbox``."""
    return local.load(home, name).log_path


def stop(home: Path, name: str, *, grace_s: float = 10.0) -> SandboxInfo:
    """SIGTERM, wait, SIGKILL; remove the sandbox and everything it held."""
    info = _info(local.load(home, name))
    status = local.destroy(home, name, grace_s)
    return replace(info, state="exited", exit_status=status)


def create_snapshot(
    home: Path,
    sandbox: str,
    name: str,
    *,
    stop_source: bool = False,
    force_copy: bool = False,
    timeout_s: float = 120.0,
    progress: Progress | None = None,
) -> SnapshotInfo:
    """Capture a sandbox; on any failure the source serves on and no snapshot is left.

    ``force_copy`` makes a snapshot whose memory is copied instead of mapped.
    """
    # Imported here: a capture needs numpy, and nothing else that a short command does should wait for it.
    from hotstart.snapshot_agent.capture import pipeline as capture_pipeline

    naming.check(name, "snapshot")
    _prepare(home)
    told = progress or _silent
    source = local.load(home, sandbox)
    source.alive()
    store = DirectoryStore(home)
    bundle = criu_bundle.find(home)
    with _alone(source):
        told("preflight", 0.0)
        _refuse(checks.check_capture(source.init_pid, _where(home), kv_bytes=_kv_bytes(source)))
        facts = checks.capture_facts(source.init_pid, source.spec, checks.criu_version(bundle, home))
        order = capture_pipeline.Order(
            source,
            name,
            facts,
            bundle,
            kerndat.cached(home, bundle),
            stop_source=stop_source,
            force_copy=force_copy,
            timeout_s=timeout_s,
        )
        manifest = capture_pipeline.capture(order, store, told)
        try:
            with store.open(name) as handle:
                path = handle.path
                with contextlib.suppress(OSError):  # a full disk: without a stamp the first restore reads everything
                    stamp.write(home, handle)
        finally:
            if stop_source:
                local.destroy(home, sandbox, 1.0)
    return SnapshotInfo(name, path, manifest)


def snapshots(home: Path) -> list[SnapshotInfo]:
    """All published snapshots that can be read, by name; ``damaged_snapshots`` tells of the others."""
    return [info for _name, info in _each_snapshot(home) if isinstance(info, SnapshotInfo)]


def damaged_snapshots(home: Path) -> dict[str, str]:
    """Names of snapshots whose manifest cannot be read, with the reason."""
    return {name: info for name, info in _each_snapshot(home) if isinstance(info, str)}


def inspect_snapshot(home: Path, name: str) -> SnapshotInfo:
    """One snapshot; raises ``no-such-snapshot``, ``manifest-invalid``."""
    with DirectoryStore(home).open(name) as handle:
        return SnapshotInfo(name, handle.path, handle.manifest)


def verify_snapshot(home: Path, name: str, progress: Progress | None = None) -> list[Damage]:
    """Read every byte and compare it with its digest; an empty list means intact."""
    told = progress or _silent
    with DirectoryStore(home).open(name) as handle:
        damage = copies.check(handle, told)
        if not damage:
            stamp.write(home, handle)
    return damage


def remove_snapshot(home: Path, name: str) -> int:
    """Remove a snapshot that nobody reads; returns the bytes freed.  Raises ``snapshot-busy``."""
    freed = DirectoryStore(home).remove(name)
    stamp.forget(home, name)
    return freed


def restore(
    home: Path,
    snapshot: str,
    names: Sequence[str],
    *,
    timeout_s: float = 120.0,
    force_copy: bool = False,
    cold_start: bool = True,
    progress: Progress | None = None,
) -> list[RestoreResult]:
    """Restore one copy per name, all at the same time.

    A copy that cannot be restored cold starts (``cold_start=False``: is removed); its result says why.  When nothing
    is left to have a result (every copy was removed, or could not even cold start) the first one's reason is raised.
    Raises ``sandbox-exists`` before anything is made; an interrupt removes every copy.  ``force_copy`` copies all
    memory instead of mapping it.
    """
    began = time.monotonic()
    told = progress or _silent
    for name in names:
        naming.check(name, "sandbox")
    copies.check_names(home, names)
    with DirectoryStore(home).open(snapshot) as handle, tempfile.TemporaryDirectory(dir=_prepare(home)) as work:
        planning = Phases(began=began)
        with planning.span("plan"):
            try:
                plan: restore_pipeline.Source | HotstartError = copies.source(
                    home, handle, Path(work), len(names), force_copy=force_copy, told=told
                )
            except HotstartError as error:
                if not cold_start:
                    raise
                plan = error
        deadline = Deadline.after(timeout_s, "the restore")
        return copies.restore_all(
            home, handle.manifest, plan, names, Path(work), deadline, planning, cold_start=cold_start, told=told
        )


def preflight(home: Path, *, snapshot: str | None = None, sandbox: str | None = None) -> list[Finding]:
    """What would make the capture of ``sandbox``, or the restore of ``snapshot``, fail on this machine."""
    findings: list[Finding] = []
    if sandbox is not None:
        source = local.load(home, sandbox)
        source.alive()
        findings += checks.check_capture(source.init_pid, _where(home), kv_bytes=_kv_bytes(source))
    if snapshot is not None:
        criu = criu_bundle.find(home)
        version = checks.criu_version(criu, home)
        with DirectoryStore(home).open(snapshot) as handle:
            findings += checks.check_restore(handle.manifest, home, criu=version, preload=criu.preload)
    if sandbox is None and snapshot is None:
        findings += [finding for _name, ok, _found, finding in doctor(home) if not ok and finding is not None]
    return findings


def doctor(home: Path) -> list[tuple[str, bool, str, Finding | None]]:
    """Checks of the machine: name, passed, what was found, the finding if not passed."""
    return examine(home)


def _silent(_phase: str, _fraction: float) -> None:
    """No progress is wanted."""


def _prepare(home: Path) -> Path:
    """The home directory with its scratch directory (on the same file system as the snapshots)."""
    scratch = home / "scratch"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch.mkdir(mode=0o700, exist_ok=True)
    return scratch


def _where(home: Path) -> Path:
    """The directory whose file system a snapshot must fit into: ``snapshots`` may be a mount of its own."""
    place = home / "snapshots"
    return place if place.is_dir() else home


def _refuse(findings: Sequence[Finding]) -> None:
    """Raise the first fatal finding, before anything is disturbed."""
    fatal = [f for f in findings if f.fatal]
    if fatal:
        first = fatal[0]
        more = f" (and {len(fatal) - 1} more: hotstart preflight lists them)" if len(fatal) > 1 else ""
        raise HotstartError(
            first.reason,
            f"{first.subject}: {first.found}, needed: {first.needed}{more}",
            tried="preflight",
            next_step=first.what_to_do,
        )


def _kv_bytes(sandbox: local.LocalSandbox) -> int:
    report = quiesce.read_report(sandbox.control)
    value = report.facts.get("kv_bytes", 0) if report else 0
    return int(value) if isinstance(value, int | float) else 0


@contextmanager
def _alone(sandbox: local.LocalSandbox) -> Iterator[None]:
    """One capture or restore of a sandbox at a time; a worker at rest notices when the lock is let go."""
    with sandbox.control.hold() as alone:
        if not alone:
            raise HotstartError(CAPTURE_BUSY, f"another capture or restore of {sandbox.name} is running")
        yield


def _each_snapshot(home: Path) -> Iterator[tuple[str, SnapshotInfo | str]]:
    store = DirectoryStore(home)
    for name in store.names():
        try:
            with store.open(name) as handle:
                yield name, SnapshotInfo(name, handle.path, handle.manifest)
        except HotstartError as error:
            yield name, error.line()


def _info(sandbox: local.LocalSandbox, *, measure: bool = False) -> SandboxInfo:
    report = None
    try:
        report = quiesce.read_report(sandbox.control)
        state, reason = sandbox.state(), sandbox.cold_start_reason() or (report.reason if report else "")
    except HotstartError as error:
        state, reason = "failed", error.reason.code
    status = sandbox.exit_status()
    return SandboxInfo(
        sandbox.name,
        state,
        sandbox.address,
        sandbox.init_pid,
        sandbox.created,
        sandbox.spec.command,
        report.engine if report else "none",
        sandbox.restored_from,
        reason,
        status,
        view.private_bytes(sandbox.init_pid) if measure and sandbox.lives() else 0,
    )
