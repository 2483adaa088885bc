"""``hotstart preflight``: what here would make a capture or a restore fail."""

from __future__ import annotations

import click

from hotstart.snapshot_agent.cli import lookup, output, show
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.cli.verbs import verb


@verb(
    short_help="What here would make a capture or a restore fail.",
    examples=[
        ("could this machine capture and restore at all?", "hotstart preflight"),
        ("could this snapshot be restored here?", "hotstart preflight chat"),
        ("could the worker in this sandbox be captured?", "hotstart preflight --sandbox chat"),
    ],
)
@click.option(
    "--sandbox", metavar="NAME", shell_complete=lookup.complete_sandbox, help="Look at the worker in a sandbox."
)
@click.argument("snapshot", required=False, shell_complete=lookup.complete_snapshot)
def preflight(settings: Settings, sandbox: str | None, snapshot: str | None) -> int:
    """Find what would make the restore of SNAPSHOT, or the capture of a sandbox, fail; nothing is disturbed.

    The exit code is that of the first finding that forbids the operation, and 0 when nothing does.
    """
    from hotstart.snapshot_agent import api

    with lookup.suggesting(settings.home, snapshot or sandbox or ""):
        findings = api.preflight(settings.home, snapshot=snapshot, sandbox=sandbox)
    fatal = [finding for finding in findings if finding.fatal]
    if settings.json:
        output.write_json({"ok": not fatal, "findings": [finding.to_json() for finding in findings]})
    elif findings:
        show.findings(settings, [*fatal, *(finding for finding in findings if not finding.fatal)])
    if not fatal and not settings.json:
        output.write("nothing here stands in the way\n")
    return fatal[0].reason.exit_code if fatal else 0


command = preflight
