"""``hotstart restore``: bring copies of a captured worker back."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotstart.errors import HotstartError
from hotstart.reasons import COLD_STARTED, COPIED_GROWSDOWN, INTERNAL, REGISTRY
from hotstart.snapshot_agent.cli import interrupts, lookup, naming, output, picture, progress
from hotstart.snapshot_agent.cli.output import Cell, Column, Fit, Styled
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.cli.verbs import seconds, verb, whole
from hotstart.snapshot_agent.units import NOTHING, count, duration, size

if TYPE_CHECKING:
    from hotstart.snapshot_agent.api import RestoreResult


@verb(
    short_help="Bring copies of a captured worker back.",
    examples=[
        ("one copy", "hotstart restore chat"),
        ("three at the same time: web-1, web-2, web-3", "hotstart restore chat --name web --count 3"),
        ("draw where the time went", "hotstart restore chat --timeline restore.svg"),
        ("fail instead of falling back to a cold start", "hotstart restore chat --no-cold-start"),
    ],
)
@click.option(
    "--name", metavar="NAME", help="The new sandbox's name; several get -1, -2 …  [default: from the snapshot's]"
)
@click.option(
    "--count",
    "-n",
    "copies",
    type=whole(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of copies.",
)
@click.option("--copy", "force_copy", is_flag=True, help="Copy all memory instead of mapping it.")
@click.option(
    "--no-cold-start", is_flag=True, help="Remove a copy that cannot be restored, instead of cold starting it."
)
@click.option("--timeout", type=seconds, default=120, show_default=True, metavar="S", help="Seconds to succeed.")
@picture.option()
@click.argument("snapshot", shell_complete=lookup.complete_snapshot)
def restore(
    settings: Settings,
    name: str | None,
    copies: int,
    force_copy: bool,
    no_cold_start: bool,
    timeout: float,
    timeline: Path | None,
    snapshot: str,
) -> None:
    """Restore copies of SNAPSHOT, all at the same time, each in a sandbox with an address of its own.

    Copies share the snapshot's memory; PRIVATE is what each has of its own. A copy that cannot be restored cold starts
    from its command, and the reason is told; the exit code then is that of cold-started.
    """
    from hotstart.snapshot_agent import api

    base = naming.join(snapshot, naming.suffix(secrets.token_bytes(4))) if name is None else name
    with (
        interrupts.undone("the restore", "no copy is left"),
        lookup.suggesting(settings.home, snapshot),
        progress.shown(settings) as tell,
    ):
        results = api.restore(
            settings.home,
            snapshot,
            naming.numbered(base, copies),
            timeout_s=timeout,
            force_copy=force_copy,
            cold_start=not no_cold_start,
            progress=tell,
        )
        interrupts.done()
    error = failure(results)
    private = _private(settings.home)
    if settings.json:
        copied = [{**asdict(result), "private_bytes": private.get(result.name, 0)} for result in results]
        value: dict[str, Any] = {"snapshot": snapshot, "copies": copied}
        output.write_json({**value, **({"error": error.to_json()} if error else {})})
    else:
        output.table(settings, _COLUMNS, [_row(result, private.get(result.name, 0)) for result in results])
        _explain(results)
    if timeline is not None:
        picture.draw([(result.name, result.phases) for result in results], timeline)
    if error:
        raise output.Reported(error)


command = restore


_COLUMNS = [
    Column("NAME"),
    Column("OUTCOME"),
    Column("ADDRESS"),
    Column("SECONDS", right=True),
    Column("PRIVATE", right=True),
    Column("MODE", Fit.CUT),
]


def _private(home: Path) -> dict[str, int]:
    """Private memory by sandbox, measured when the restore is over: it costs time, and must not be in what is timed."""
    from hotstart.snapshot_agent import api

    try:
        return {info.name: info.private_bytes for info in api.sandboxes(home, measure=True)}
    except (HotstartError, OSError):  # the copies are there: a number less is no failure
        return {}


def _row(result: RestoreResult, private_bytes: int) -> list[Cell]:
    styles = {"restored": "good", "cold": "warn"}
    return [
        Styled(result.name, "strong"),
        Styled(result.outcome, styles.get(result.outcome, "bad")),
        result.address or NOTHING,
        duration(result.phases["total_s"]) if result.phases else NOTHING,
        size(private_bytes) if private_bytes else NOTHING,
        mode(result.verdicts) if result.outcome == "restored" else NOTHING,
    ]


def mode(verdicts: Sequence[dict[str, Any]]) -> str:
    """How the memory of the processes came back: ``mapped``, ``copied``, or how many of each (pure)."""
    modes = Counter(str(verdict["mode"]) for verdict in verdicts)
    if len(modes) == 1:
        return next(iter(modes))
    return ", ".join(f"{number} {name}" for name, number in sorted(modes.items(), reverse=True)) or NOTHING


def reasons(verdicts: Sequence[dict[str, Any]]) -> list[str]:
    """Why memory was copied: one line a reason code, with the processes it met (pure)."""
    met: dict[str, list[str]] = {}
    for verdict in verdicts:
        process = f"pid {verdict['pid']} ({verdict['name']})"
        if verdict["reason"]:
            met.setdefault(verdict["reason"], []).append(process)
        for code, ranges in sorted(verdict["ranges"].items()):
            if code == COPIED_GROWSDOWN.code:
                continue  # every process has a stack: nothing to tell
            met.setdefault(code, []).append(f"{count(ranges, 'range')} of {process}")
    return [f"{code}: {', '.join(where)}" for code, where in met.items()]


def _explain(results: Sequence[RestoreResult]) -> None:
    """Words on stderr: why copies cold start, and why memory was copied (the same for all copies: told once)."""
    for result in results:
        if result.outcome != "restored":
            output.say(f"{result.name}: {result.reason}: {result.detail}")
    told: dict[str, None] = {}
    for result in results:
        told.update(dict.fromkeys(reasons(result.verdicts)))
    for line in told:
        output.say(f"copied memory: {line}")


def failure(results: Sequence[RestoreResult]) -> HotstartError | None:
    """The failure that the exit code tells: a cold start, or why a copy was removed (pure)."""
    lost = [result for result in results if result.outcome not in ("restored", "cold")]
    if lost:
        reason = REGISTRY.get(lost[0].reason, INTERNAL)
        return HotstartError(reason, lost[0].detail, tried=f"restoring {lost[0].name}, which was removed")
    cold = [result for result in results if result.outcome == "cold"]
    if cold:
        text = f"{len(cold)} of {count(len(results), 'copy')} cold started instead of being restored ({cold[0].reason})"
        return HotstartError(COLD_STARTED, text)
    return None
