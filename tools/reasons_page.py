"""docs/reasons.md, written from the registry of reason codes."""

from __future__ import annotations

from tools.cache import ROOT

PAGE = ROOT / "docs" / "reasons.md"
_HEAD = """\
# Reason codes

Every way in which Hotstart refuses or fails has one of these codes.  A code is stable: it stands in errors, exit codes,
`--output json`, reports and events, and is never reused.  Written from `hotstart/reasons.py` by `./dev docs`.

| code | exit code | what it means | what to do |
|---|---|---|---|
"""


def render() -> str:
    """The page as it should be."""
    from hotstart.reasons import REGISTRY

    rows = [
        f"| `{reason.code}` | {reason.exit_code} | {_cell(reason.meaning)} | {_cell(reason.remedy)} |"
        for reason in sorted(
            REGISTRY.values(), key=lambda reason: (reason.exit_code == 0, reason.exit_code, reason.code)
        )
    ]
    return _HEAD + "\n".join(rows) + "\n"


def write() -> None:
    """Write the page."""
    PAGE.write_text(render())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
