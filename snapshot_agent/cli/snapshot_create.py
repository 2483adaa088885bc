"""``hotstart snapshot create``: capture a running worker."""

from __future__ import annotations

import click

from hotstart.snapshot_agent.cli import interrupts, lookup, naming, output, progress, show
from hotstart.snapshot_agent.cli.output import Column
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.cli.verbs import seconds, verb
from hotstart.snapshot_agent.units import duration, size


@verb(
    short_help="Capture the worker in a sandbox.",
    examples=[
        ("capture; the worker serves on", "hotstart snapshot create chat"),
        ("capture under another name, and stop the source", "hotstart snapshot create chat --name chat-v2 --stop"),
    ],
)
@click.option("--name", metavar="NAME", help="The snapshot's name.  [default: the sandbox's, numbered if taken]")
@click.option("--stop", "stop_source", is_flag=True, help="Stop the sandbox afterwards instead of letting it serve on.")
@click.option("--copy", "force_copy", is_flag=True, help="Let restores copy all memory instead of mapping it.")
@click.option("--timeout", type=seconds, default=120, show_default=True, metavar="S", help="Seconds to succeed.")
@click.argument("sandbox", shell_complete=lookup.complete_sandbox)
def create(
    settings: Settings, name: str | None, stop_source: bool, force_copy: bool, timeout: float, sandbox: str
) -> None:
    """Capture the worker in SANDBOX as a snapshot.

    Requests in flight are finished first; then the worker stands still for a moment (FROZEN) and serves on. When
    anything goes wrong, or Ctrl-C is pressed, it serves on too and no snapshot is left.
    """
    from hotstart.snapshot_agent import api

    with (
        interrupts.undone("the capture", "the worker serves on"),
        lookup.suggesting(settings.home, sandbox),
        progress.shown(settings) as tell,
    ):
        info = api.create_snapshot(
            settings.home,
            sandbox,
            naming.first_free(sandbox, lookup.snapshot_names(settings.home)) if name is None else name,
            stop_source=stop_source,
            force_copy=force_copy,
            timeout_s=timeout,
            progress=tell,
        )
        interrupts.done()
    if settings.json:
        output.write_json(show.snapshot_json(info))
        return
    columns = [
        Column("NAME"),
        Column("STORED", right=True),
        Column("MEMORY", right=True),
        Column("FROZEN", right=True),
        Column("TOTAL", right=True),
    ]
    sizes, timings = info.manifest.sizes, info.manifest.timings
    output.table(
        settings,
        columns,
        [
            [
                info.name,
                size(sizes.stored_bytes),
                size(sizes.memory_bytes),
                duration(timings.frozen_s),
                duration(timings.total_s),
            ]
        ],
    )


command = create
