"""``hotstart stop``: end sandboxes and remove what they held."""

from __future__ import annotations

import click

from hotstart.snapshot_agent.cli import each, lookup, output, show
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.cli.verbs import seconds, verb


@verb(
    short_help="Stop sandboxes and remove all they held.",
    examples=[
        ("stop one", "hotstart stop chat"),
        ("stop all, without patience", "hotstart stop --all --grace 1"),
    ],
)
@click.option("--all", "-a", "everything", is_flag=True, help="Stop every sandbox.")
@click.option(
    "--grace",
    type=seconds,
    default=10,
    show_default=True,
    metavar="S",
    help="Seconds between SIGTERM and SIGKILL.",
)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=lookup.complete_sandbox)
def stop(settings: Settings, everything: bool, grace: float, names: tuple[str, ...]) -> None:
    """Stop the sandboxes NAME...: SIGTERM, some patience, SIGKILL; then everything they held is removed.

    Snapshots stay. Several sandboxes are stopped at the same time.
    """
    from hotstart.snapshot_agent import api

    if bool(names) == everything:
        raise click.UsageError("give names, or --all", click.get_current_context())
    chosen = lookup.sandbox_names(settings.home) if everything else list(dict.fromkeys(names))

    def one(name: str) -> api.SandboxInfo:
        with lookup.suggesting(settings.home, name):
            info = api.stop(settings.home, name, grace_s=grace)
        if not settings.json:
            output.write(f"{name}\n")
        return info

    done, failed = each.one(chosen, one)
    each.finish(settings, [show.sandbox_json(info) for info in done.values()], failed, "stopped")


command = stop
