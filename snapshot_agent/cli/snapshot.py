"""``hotstart snapshot``: the verbs that make and keep snapshots."""

from __future__ import annotations

from hotstart.snapshot_agent.cli.verbs import Group

_HERE = "hotstart.snapshot_agent.cli.snapshot_"

command = Group(
    name="snapshot",
    help="Make snapshots of running workers, look at them, check them, remove them.",
    short_help="Make, list, inspect, verify and remove snapshots.",
    sections={
        "Verbs": {
            "create": _HERE + "create",
            "list": _HERE + "list",
            "inspect": _HERE + "inspect",
            "verify": _HERE + "verify",
            "rm": _HERE + "rm",
        }
    },
    synonyms={
        "ls": "list",
        "ps": "list",
        "show": "inspect",
        "info": "inspect",
        "remove": "rm",
        "delete": "rm",
        "del": "rm",
        "check": "verify",
        "new": "create",
        "make": "create",
        "capture": "create",
        "take": "create",
    },
)
