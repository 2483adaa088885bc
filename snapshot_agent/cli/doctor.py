"""``hotstart doctor``: is this machine able to do what Hotstart does?"""

from __future__ import annotations

import sys

from hotstart.snapshot_agent.cli import output
from hotstart.snapshot_agent.cli.output import Cell, Column, Fit, Styled
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.cli.verbs import verb


@verb(
    short_help="Check the machine: kernel, CRIU, cgroups, disk.",
    examples=[("check", "hotstart doctor"), ("for machines", "hotstart doctor -o json")],
)
def doctor(settings: Settings) -> int:
    """Check what Hotstart needs of this machine.

    The exit code is that of the first failed check's reason, and 0 when all pass.
    """
    from hotstart.snapshot_agent import api

    checks = api.doctor(settings.home)
    if settings.json:
        listed = [
            {"name": name, "passed": passed, "found": found, "finding": finding.to_json() if finding else None}
            for name, passed, found, finding in checks
        ]
        output.write_json({"ok": all(passed for _, passed, _, _ in checks), "checks": listed})
    else:
        good, bad = ("✓", "✗") if output.speaks_unicode(sys.stdout) else ("ok", "x")
        rows: list[list[Cell]] = []
        for name, passed, found, finding in checks:
            rows.append([Styled(good, "good") if passed else Styled(bad, "bad"), name, found])
            if finding is not None and not passed:
                needed = f"needed: {finding.needed}; " if finding.needed else ""
                rows.append(["", "", Styled(needed + (finding.what_to_do or finding.reason.remedy), "warn")])
        output.table(settings, [Column(""), Column(""), Column("", Fit.WRAP)], rows)
    failed = [finding for _, passed, _, finding in checks if not passed]
    return next((finding.reason.exit_code for finding in failed if finding), 1 if failed else 0)


command = doctor
