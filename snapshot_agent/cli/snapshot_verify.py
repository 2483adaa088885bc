"""``hotstart snapshot verify``: read every byte of snapshots and compare it with its digest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hotstart.errors import HotstartError
from hotstart.reasons import MANIFEST_INVALID, MANIFEST_VERSION, MEMORY_FILE_INVALID, SNAPSHOT_DAMAGED
from hotstart.snapshot_agent.cli import lookup, output, progress
from hotstart.snapshot_agent.cli.output import Column, Fit, Styled
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.cli.verbs import verb
from hotstart.snapshot_agent.units import count

if TYPE_CHECKING:
    from hotstart.snapshot_agent.api import Damage

_BEYOND_READING = frozenset({MANIFEST_INVALID, MANIFEST_VERSION, MEMORY_FILE_INVALID})


@verb(
    short_help="Check every byte against its digest.",
    examples=[("one snapshot", "hotstart snapshot verify chat"), ("every snapshot", "hotstart snapshot verify --all")],
)
@click.option("--all", "-a", "everything", is_flag=True, help="Verify every snapshot.")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=lookup.complete_snapshot)
def verify(settings: Settings, everything: bool, names: tuple[str, ...]) -> None:
    """Read the snapshots NAME... byte by byte, and name every file that is missing, truncated or changed."""
    if bool(names) == everything:
        raise click.UsageError("give names, or --all", click.get_current_context())
    chosen = lookup.snapshot_names(settings.home) if everything else list(dict.fromkeys(names))
    found = {name: _one(settings, name) for name in chosen}
    damaged = [name for name, damages in found.items() if damages]
    error = None
    if damaged:
        files = count(sum(len(found[name]) for name in damaged), "file")
        error = HotstartError(SNAPSHOT_DAMAGED, f"{files} damaged in {', '.join(damaged)}", next_step="capture again")
    if settings.json:
        listed = [
            {"name": n, "intact": not d, "damaged": [{"path": x.path, "what": x.what} for x in d]}
            for n, d in found.items()
        ]
        output.write_json({"snapshots": listed, **({"error": error.to_json()} if error else {})})
    else:
        _print(settings, found)
    if error:
        raise output.Reported(error)


command = verify


def _one(settings: Settings, name: str) -> list[Damage]:
    from hotstart.snapshot_agent import api

    try:
        with lookup.suggesting(settings.home, name), progress.shown(settings) as tell:
            return api.verify_snapshot(settings.home, name, lambda phase, done: tell(f"{name}: {phase}", done))
    except HotstartError as error:
        if error.reason not in _BEYOND_READING:
            raise
        return [api.Damage("manifest.json" if error.reason is not MEMORY_FILE_INVALID else "memory", error.detail)]


def _print(settings: Settings, found: dict[str, list[Damage]]) -> None:
    columns = [Column("NAME"), Column("STATE"), Column("FILE"), Column("WHAT", Fit.WRAP)]
    rows: list[list[output.Cell]] = []
    for name, damages in found.items():
        if not damages:
            rows.append([name, Styled("intact", "good"), "", ""])
        rows += [[name, Styled("damaged", "bad"), damage.path, damage.what] for damage in damages]
    output.table(settings, columns, rows)
