"""Sandboxes, snapshots, copies and findings as table cells and as JSON: the same everywhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hotstart.snapshot_agent.cli import output
from hotstart.snapshot_agent.cli.output import Cell, Column, Fit, Styled
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.units import NOTHING, age, command, size

if TYPE_CHECKING:
    from hotstart.findings import Finding
    from hotstart.snapshot_agent.api import SandboxInfo, SnapshotInfo

_STATE_STYLES = {
    "ready": "good",
    "running": "good",
    "starting": "warn",
    "quiescing": "warn",
    "quiesced": "warn",
    "resuming": "warn",
    "cold": "warn",
    "failed": "bad",
    "exited": "dim",
}


def state(info: SandboxInfo) -> Cell:
    """The state with what explains it."""
    words = info.state
    if info.reason:
        words += f" ({info.reason})"
    elif info.exit_status is not None:
        words += f" ({info.exit_status})"
    style = _STATE_STYLES.get(info.state, "warn")
    return Styled(words, "bad" if info.state == "exited" and info.exit_status else style)


def sandbox_json(info: SandboxInfo) -> dict[str, Any]:
    """All that ``ps`` knows of a sandbox."""
    return asdict(info)


def started(settings: Settings, info: SandboxInfo) -> None:
    """A new sandbox: name, address, state."""
    if settings.json:
        output.write_json(sandbox_json(info))
        return
    columns = [Column("NAME"), Column("ADDRESS"), Column("STATE"), Column("ENGINE")]
    output.table(settings, columns, [[info.name, info.address or NOTHING, state(info), info.engine or NOTHING]])


SANDBOX_COLUMNS = [
    Column("NAME"),
    Column("STATE", Fit.CUT),
    Column("ADDRESS"),
    Column("ENGINE"),
    Column("AGE", right=True),
    Column("PRIVATE", right=True),
    Column("RESTORED-FROM", Fit.CUT),
    Column("COMMAND", Fit.CUT),
]


def sandbox_row(info: SandboxInfo) -> Sequence[Cell]:
    """The cells of :data:`SANDBOX_COLUMNS`."""
    return [
        Styled(info.name, "strong"),
        state(info),
        info.address or NOTHING,
        info.engine or NOTHING,
        age(info.created),
        size(info.private_bytes) if info.private_bytes else NOTHING,
        info.restored_from or NOTHING,
        command(info.command),
    ]


def snapshot_json(snapshot: SnapshotInfo) -> dict[str, Any]:
    """A snapshot in short; ``inspect`` has all of it."""
    manifest = snapshot.manifest
    return {
        "name": snapshot.name,
        "path": str(snapshot.path),
        "created": manifest.created,
        "engine": manifest.engine.name,
        "command": list(manifest.sandbox.command),
        "processes": len(manifest.verdicts),
        "stored_bytes": manifest.sizes.stored_bytes,
        "memory_bytes": manifest.sizes.memory_bytes,
        "kv_bytes": manifest.sizes.kv_bytes,
        "frozen_s": manifest.timings.frozen_s,
        "total_s": manifest.timings.total_s,
        "cold_start_s": manifest.timings.cold_start_s,
    }


def manifest_json(snapshot: SnapshotInfo) -> dict[str, Any]:
    """The whole manifest, but of the environment only the names: values may be secrets."""
    import msgspec

    manifest: dict[str, Any] = msgspec.to_builtins(snapshot.manifest)
    environment = manifest["sandbox"].pop("env")
    manifest["sandbox"]["env_names"] = sorted(environment)
    return manifest


_TABLE_WIDTH = 120
"""A narrower terminal shows findings as records: five wrapped columns side by side cannot be read there."""

_FINDING_COLUMNS = [
    Column(""),
    Column("REASON"),
    Column("SUBJECT", Fit.WRAP),
    Column("FOUND", Fit.WRAP),
    Column("NEEDED", Fit.WRAP),
    Column("WHAT TO DO", Fit.WRAP),
]


def findings(settings: Settings, found: Sequence[Finding]) -> None:
    """Print findings; a cross marks those that forbid the operation."""
    unicode = output.speaks_unicode(sys.stdout)
    rows = [_finding_row(finding, unicode=unicode) for finding in found]
    if not output.is_terminal(sys.stdout) or output.width() >= _TABLE_WIDTH:
        output.table(settings, _FINDING_COLUMNS, rows)
        return
    records: list[Sequence[Cell]] = []
    for mark, reason, subject, has, needed, do in rows:
        records += [[mark, reason, subject], ["", "  found", has], ["", "  needed", needed], ["", "  what to do", do]]
    output.table(settings, [Column(""), Column(""), Column("", Fit.WRAP)], records)


def _finding_row(finding: Finding, *, unicode: bool) -> Sequence[Cell]:
    mark = Styled("✗" if unicode else "x", "bad") if finding.fatal else Styled("!", "warn")
    return [
        mark,
        Styled(finding.reason.code, "strong"),
        finding.subject,
        finding.found,
        finding.needed,
        finding.what_to_do or finding.reason.remedy,
    ]
