"""``hotstart ps``: the sandboxes on this machine."""

from __future__ import annotations

import click

from hotstart.snapshot_agent.cli import output, show
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.cli.verbs import verb


@verb(
    short_help="List sandboxes: state, address, private memory.",
    examples=[
        ("all sandboxes", "hotstart ps"),
        ("addresses of what is ready", "hotstart ps -o json | jq -r '.[] | select(.state==\"ready\").address'"),
        ("stop them all", "hotstart stop $(hotstart ps -q)"),
    ],
)
@click.option("--quiet", "-q", is_flag=True, help="Print names only.")
def ps(settings: Settings, quiet: bool) -> None:
    """List the sandboxes of this machine.

    PRIVATE is the memory that a sandbox does not share with its snapshot or with anyone else.
    """
    from hotstart.snapshot_agent import api

    infos = sorted(api.sandboxes(settings.home, measure=not quiet), key=lambda info: (info.created, info.name))
    if settings.json:
        output.write_json([info.name for info in infos] if quiet else [show.sandbox_json(info) for info in infos])
    elif quiet:
        output.write("".join(f"{info.name}\n" for info in infos))
    else:
        output.table(settings, show.SANDBOX_COLUMNS, [show.sandbox_row(info) for info in infos])
        if not infos:
            output.say("no sandboxes; hotstart run -- COMMAND starts one")


command = ps
