"""The program itself: its verbs by topic, and the words people may use for them."""

from __future__ import annotations

import click

import hotstart
from hotstart.snapshot_agent.cli.verbs import Group

_HERE = "hotstart.snapshot_agent.cli."

SECTIONS = {
    "Sandboxes": {
        "run": _HERE + "run",
        "ps": _HERE + "ps",
        "logs": _HERE + "logs",
        "stop": _HERE + "stop",
    },
    "Snapshots": {
        "snapshot": _HERE + "snapshot",
        "restore": _HERE + "restore",
    },
    "This machine": {
        "preflight": _HERE + "preflight",
        "doctor": _HERE + "doctor",
        "completion": _HERE + "completion",
    },
}

SYNONYMS = {
    "start": "run",
    "exec": "run",
    "ls": "ps",
    "list": "ps",
    "status": "ps",
    "log": "logs",
    "kill": "stop",
    "rm": "stop",
    "remove": "stop",
    "delete": "stop",
    "capture": "snapshot create",
    "checkpoint": "snapshot create",
    "dump": "snapshot create",
    "create": "snapshot create",
    "inspect": "snapshot inspect",
    "show": "snapshot inspect",
    "verify": "snapshot verify",
    "thaw": "restore",
    "clone": "restore",
    "check": "preflight",
    "help": "--help",
    "version": "--version",
}


def version_line() -> str:
    """What ``--version`` prints."""
    return f"hotstart {hotstart.__version__}\n"


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from hotstart.snapshot_agent.cli import output

        output.write(version_line())
        ctx.exit()


program = Group(
    name="hotstart",
    sections=SECTIONS,
    synonyms=SYNONYMS,
    help="Capture one warmed-up LLM worker, and bring copies of it back in a fraction of a second.",
    epilog="hotstart VERB --help has examples. Exit codes and reasons: docs/cli.md, docs/reasons.md.",
    params=[
        click.Option(
            ["--version", "-V"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version.",
        )
    ],
)
