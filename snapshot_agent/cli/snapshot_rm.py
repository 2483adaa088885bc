"""``hotstart snapshot rm``: remove snapshots."""

from __future__ import annotations

import click

from hotstart.snapshot_agent.cli import each, lookup, output
from hotstart.snapshot_agent.cli.output import Column
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.cli.verbs import verb
from hotstart.snapshot_agent.units import size


@verb(
    short_help="Remove snapshots.",
    examples=[
        ("remove one", "hotstart snapshot rm chat"),
        ("remove all", "hotstart snapshot rm $(hotstart snapshot list -q)"),
    ],
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=lookup.complete_snapshot)
def rm(settings: Settings, names: tuple[str, ...]) -> None:
    """Remove the snapshots NAME..., damaged ones too.

    A snapshot that a restore is reading is not removed; workers that were restored from one keep running.
    """
    from hotstart.snapshot_agent import api

    def one(name: str) -> int:
        with lookup.suggesting(settings.home, name):
            return api.remove_snapshot(settings.home, name)

    done, failed = each.one(list(dict.fromkeys(names)), one)
    if not settings.json and done:
        columns = [Column("REMOVED"), Column("FREED", right=True)]
        output.table(settings, columns, [[name, size(freed)] for name, freed in done.items()])
    each.finish(settings, [{"name": name, "freed_bytes": freed} for name, freed in done.items()], failed, "removed")


command = rm
