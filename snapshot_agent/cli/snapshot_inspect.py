"""``hotstart snapshot inspect``: all that is known of one snapshot."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotstart.snapshot_agent.cli import bars, lookup, output, picture, show
from hotstart.snapshot_agent.cli.output import Cell, Column, Fit, Styled
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.cli.verbs import verb
from hotstart.snapshot_agent.units import NOTHING, age, count, duration, printable, share, size
from hotstart.snapshot_agent.units import command as words

if TYPE_CHECKING:
    from hotstart.snapshot_agent.api import SnapshotInfo
    from hotstart.snapshot_agent.catalog.manifest import Manifest, Verdict

_Section = list[tuple[str, str]]


@verb(
    short_help="Show identity, sizes, verdicts, phases, facts.",
    examples=[
        ("look at a snapshot", "hotstart snapshot inspect chat"),
        ("draw how its capture went", "hotstart snapshot inspect chat --timeline capture.svg"),
        ("the manifest as JSON", "hotstart snapshot inspect chat -o json"),
    ],
)
@picture.option()
@click.argument("name", shell_complete=lookup.complete_snapshot)
def inspect(settings: Settings, timeline: Path | None, name: str) -> None:
    """Show what snapshot NAME holds.

    Identity, engine, sizes, how each process's memory comes back and why, the phases of its capture with the rest that
    no phase accounts for, and the facts that a restore depends on.

    Of the environment only the names are shown: values may be secrets.
    """
    from hotstart.snapshot_agent import api

    with lookup.suggesting(settings.home, name):
        info = api.inspect_snapshot(settings.home, name)
    if settings.json:
        output.write_json({"name": info.name, "path": str(info.path), "manifest": show.manifest_json(info)})
    else:
        _print(settings, info)
    if timeline is not None:
        picture.draw([(f"capture of {info.name}", _phases(info.manifest))], timeline)


command = inspect


def _phases(manifest: Manifest) -> dict[str, Any]:
    timings = manifest.timings
    spans = [{"name": span.name, "start_s": span.start_s, "end_s": span.end_s} for span in timings.spans]
    return {"total_s": timings.total_s, "unaccounted_s": timings.unaccounted_s, "spans": spans}


def _print(settings: Settings, info: SnapshotInfo) -> None:
    manifest = info.manifest
    for section, pairs in ((info.name, identity(info)), ("Engine", engine(manifest)), ("Sizes", sizes(manifest))):
        _pairs(settings, section, pairs)
        output.write("\n")
    _title(settings, "Processes")
    output.table(settings, _VERDICT_COLUMNS, [_verdict(verdict) for verdict in manifest.verdicts])
    timings = manifest.timings
    title = f"Phases of the capture: {duration(timings.total_s)}, frozen {duration(timings.frozen_s)}"
    output.write("\n")
    _title(settings, title)
    _waterfall(settings, _phases(manifest))
    output.write("\n")
    _pairs(settings, "Facts", facts(manifest))


def _title(settings: Settings, text: str) -> None:
    output.write(output.paint(settings, text, "strong") + "\n")


def _pairs(settings: Settings, title: str, pairs: _Section) -> None:
    _title(settings, title)
    columns = [Column(""), Column("", Fit.WRAP)]
    output.table(settings, columns, [[Styled(f"  {key}", "dim"), value] for key, value in pairs])


def identity(info: SnapshotInfo) -> _Section:
    """What was captured, when, as whom."""
    manifest = info.manifest
    sandbox = manifest.sandbox
    owner = f"{sandbox.uid}:{sandbox.gid}" + (f" groups {sandbox.groups}" if sandbox.groups else "")
    volumes = [f"{v.source} at {v.target}{'' if v.read_only else ', writable'}" for v in sandbox.volumes]
    pairs = [
        ("captured", f"{age(manifest.created)} ago ({manifest.created}) by Hotstart {manifest.hotstart}"),
        ("directory", str(info.path)),
        ("command", words(sandbox.command)),
        ("user", owner),
        ("working directory", sandbox.cwd),
        ("root file system", sandbox.rootfs),
        ("tmpfs", ", ".join(sandbox.tmpfs)),
        ("volumes", "; ".join(volumes)),
        ("environment", f"{count(len(sandbox.env), 'variable')} (values are not shown)"),
        ("labels", ", ".join(f"{key}={value}" for key, value in sorted(sandbox.labels.items()))),
    ]
    return [(key, value) for key, value in pairs if value]


def engine(manifest: Manifest) -> _Section:
    """What the engine plugin said of itself."""
    entry = manifest.engine
    told = sorted((key, value) for key, value in entry.facts.items() if key != "cold_start_s")
    pairs = [("name", entry.name), *(_fact(key, value) for key, value in told)]
    if entry.canary:
        ids = " ".join(str(token.token_id) for token in entry.canary.tokens)
        pairs.append(("canary", f"{entry.canary.prompt!r} answered by tokens {ids}"))
    if manifest.timings.cold_start_s:
        pairs.append(("cold start", f"{duration(manifest.timings.cold_start_s)}, which a restore replaces"))
    return pairs


def _fact(key: str, value: float | int | str) -> tuple[str, str]:
    """A fact with the unit that its name ends in."""
    words = key.replace("_", " ")
    if isinstance(value, str):
        return words, value
    if key.endswith("_s"):
        return f"{words[:-2]} time", duration(value)
    return (words[:-6], size(value)) if key.endswith("_bytes") else (words, f"{value:g}")


def sizes(manifest: Manifest) -> _Section:
    """Where the bytes are."""
    entry = manifest.sizes
    kv = "none" if not entry.kv_bytes else size(entry.kv_bytes)
    return [
        ("stored on disk", size(entry.stored_bytes)),
        ("memory file", f"{size(entry.memory_bytes)} of content, {size(entry.zero_bytes)} of zeros left out"),
        ("shared memory", size(entry.shared_bytes)),
        ("KV cache", f"{kv} in the snapshot, {size(entry.kv_released_bytes)} released before the capture"),
        ("CRIU images", size(entry.skeleton_bytes)),
        ("file system changes", size(entry.rootfs_bytes)),
        ("tmpfs contents", size(entry.tmpfs_bytes)),
    ]


def facts(manifest: Manifest) -> _Section:
    """What preflight compares with the machine of a restore."""
    entry = manifest.facts
    return [
        ("kernel", f"{entry.kernel} {entry.machine}"),
        ("CPU", f"{entry.cpu_model}, {len(entry.cpu_flags)} features, xsave {size(entry.xsave_bytes)}"),
        ("CRIU", entry.criu),
        ("libc", entry.libc),
        ("cgroup", entry.cgroup),
        ("page size", size(entry.page_size)),
        ("security modules", ", ".join(entry.lsm) or "none"),
        ("executable memory", "yes" if entry.executable_memory else "no"),
        ("files outside", f"{count(len(entry.files), 'file')} that must be unchanged at a restore"),
    ]


_VERDICT_COLUMNS = [
    Column("PID", right=True),
    Column("NAME", Fit.CUT),
    Column("MODE"),
    Column("MAPPED", right=True),
    Column("COPIED", right=True),
    Column("KEPT", right=True),
    Column("EMPTY", right=True),
    Column("WHY COPIED", Fit.CUT),
]


def _verdict(verdict: Verdict) -> Sequence[Cell]:
    why = ", ".join(filter(None, [verdict.reason, *(f"{code} ({n})" for code, n in sorted(verdict.ranges.items()))]))
    return [
        str(verdict.pid),
        verdict.name,
        Styled(verdict.mode, "good" if verdict.mode == "mapped" else "warn"),
        size(verdict.mapped_bytes),
        size(verdict.copied_bytes),
        size(verdict.kept_bytes),
        size(verdict.empty_bytes),
        why or NOTHING,
    ]


def _waterfall(settings: Settings, phases: dict[str, Any]) -> None:
    names = [str(span["name"]) for span in phases["spans"]] + [bars.UNACCOUNTED]
    room = output.width() - max(len(printable(name)) for name in names) - 24
    rows = bars.waterfall(phases, max(10, min(60, room)), unicode=output.speaks_unicode(sys.stdout))
    columns = [Column(""), Column(""), Column("", right=True), Column("", right=True)]
    output.table(
        settings,
        columns,
        [
            [
                Styled(f"  {row.name}", "dim" if row.name == bars.UNACCOUNTED else ""),
                Styled(row.bar, "dim" if row.name == bars.UNACCOUNTED else "good"),
                duration(row.seconds),
                share(row.seconds, phases["total_s"]),
            ]
            for row in rows
        ],
    )
