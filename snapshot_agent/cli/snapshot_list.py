"""``hotstart snapshot list``: the snapshots on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hotstart.snapshot_agent.cli import output, show
from hotstart.snapshot_agent.cli.output import Cell, Column, Fit, Styled
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.cli.verbs import verb
from hotstart.snapshot_agent.units import NOTHING, age, duration, size
from hotstart.snapshot_agent.units import command as words

if TYPE_CHECKING:
    from hotstart.snapshot_agent.api import SnapshotInfo

_COLUMNS = [
    Column("NAME"),
    Column("ENGINE"),
    Column("AGE", right=True),
    Column("STORED", right=True),
    Column("MEMORY", right=True),
    Column("FROZEN", right=True),
    Column("COLD START", right=True),
    Column("COMMAND", Fit.CUT),
]


@verb(
    short_help="List snapshots.",
    examples=[("all snapshots", "hotstart snapshot list"), ("their names", "hotstart snapshot list -q")],
)
@click.option("--quiet", "-q", is_flag=True, help="Print names only.")
def list_(settings: Settings, quiet: bool) -> None:
    """List the snapshots of this machine, damaged ones last.

    MEMORY is what the worker held, STORED what the snapshot takes on the disk, FROZEN how long the worker stood still,
    COLD START the time that a restore replaces.
    """
    from hotstart.snapshot_agent import api

    infos = sorted(api.snapshots(settings.home), key=lambda info: (info.manifest.created, info.name))
    damaged = dict(sorted(api.damaged_snapshots(settings.home).items()))
    if quiet:
        names = [*(info.name for info in infos), *damaged]
        if settings.json:
            output.write_json(names)
        else:
            output.write("".join(f"{name}\n" for name in names))
    elif settings.json:
        listed = [show.snapshot_json(info) for info in infos]
        output.write_json([*listed, *({"name": name, "damaged": why} for name, why in damaged.items())])
    else:
        rows: list[list[Cell]] = [_row(info) for info in infos]
        rows += [_damaged_row(name, why) for name, why in damaged.items()]
        output.table(settings, _COLUMNS, rows)
        if not rows:
            output.say("no snapshots; hotstart snapshot create SANDBOX makes one")


def _row(info: SnapshotInfo) -> list[Cell]:
    manifest = info.manifest
    cold = manifest.timings.cold_start_s
    return [
        Styled(info.name, "strong"),
        manifest.engine.name,
        age(manifest.created),
        size(manifest.sizes.stored_bytes),
        size(manifest.sizes.memory_bytes),
        duration(manifest.timings.frozen_s),
        duration(cold) if cold else NOTHING,
        words(manifest.sandbox.command),
    ]


def _damaged_row(name: str, why: str) -> list[Cell]:
    return [Styled(name, "strong"), Styled("damaged", "bad"), *([NOTHING] * 5), Styled(why, "bad")]


command = list_
