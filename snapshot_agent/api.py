"""The façade of the agent: values in, values out.  Command line, benchmarks and serving stack import only this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotstart.findings import Finding
from hotstart.snapshot_agent.catalog.manifest import Manifest
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec

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


@dataclass(frozen=True)
class RestoreResult:
    """What became of one copy.  ``outcome``: ``restored`` or ``cold`` (with the reason)."""

    name: str
    outcome: str
    address: str
    phases: dict[str, Any]
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    private_bytes: int = 0
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Damage:
    """One damaged file found by ``verify``."""

    path: str
    what: str


def run(home: Path, spec: SandboxSpec) -> SandboxInfo:
    """Make a sandbox and start the command in it; returns as soon as the supervisor runs."""
    raise NotImplementedError


def wait_ready(home: Path, name: str, timeout_s: float) -> SandboxInfo:
    """Wait until the engine in the sandbox reports ready (engine none: at once)."""
    raise NotImplementedError


def sandboxes(home: Path, *, measure: bool = False) -> list[SandboxInfo]:
    """All local sandboxes; ``measure`` adds the private memory of each."""
    raise NotImplementedError


def log_path(home: Path, name: str) -> Path:
    """The file that holds what the worker wrote."""
    raise NotImplementedError


def stop(home: Path, name: str, *, grace_s: float = 10.0) -> SandboxInfo:
    """SIGTERM, wait, SIGKILL; remove the sandbox and everything it held."""
    raise NotImplementedError


def create_snapshot(
    home: Path,
    sandbox: str,
    name: str,
    *,
    stop_source: bool = False,
    timeout_s: float = 120.0,
    progress: Progress | None = None,
) -> SnapshotInfo:
    """Capture a sandbox; on any failure the source serves on and no snapshot is left."""
    raise NotImplementedError


def snapshots(home: Path) -> list[SnapshotInfo]:
    """All published snapshots; an unreadable one is listed by ``damaged_snapshots``."""
    raise NotImplementedError


def damaged_snapshots(home: Path) -> dict[str, str]:
    """Names of snapshots whose manifest cannot be read, with the reason."""
    raise NotImplementedError


def inspect_snapshot(home: Path, name: str) -> SnapshotInfo:
    """One snapshot; raises ``no-such-snapshot``, ``manifest-invalid``."""
    raise NotImplementedError


def verify_snapshot(home: Path, name: str, progress: Progress | None = None) -> list[Damage]:
    """Read every byte and compare it with its digest; an empty list means intact."""
    raise NotImplementedError


def remove_snapshot(home: Path, name: str) -> int:
    """Remove a snapshot that nobody reads; returns the bytes freed."""
    raise NotImplementedError


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

    A copy that cannot be restored cold starts (``cold_start=False``: is removed); its result says why.
    ``force_copy`` copies all memory instead of mapping it.
    """
    raise NotImplementedError


def preflight(home: Path, *, snapshot: str | None = None, sandbox: str | None = None) -> list[Finding]:
    """What would make the capture of ``sandbox``, or the restore of ``snapshot``, fail on this machine."""
    raise NotImplementedError


def doctor(home: Path) -> list[tuple[str, bool, str, Finding | None]]:
    """Checks of the machine: name, passed, what was found, the finding if not passed."""
    raise NotImplementedError
