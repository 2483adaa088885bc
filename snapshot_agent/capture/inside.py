"""The helper program of a capture: enters the sandbox and starts CRIU there."""

from __future__ import annotations

from hotstart.snapshot_agent.sandbox import enter


def main() -> None:
    """Entry point of the helper process."""
    enter.main({"kerndat": enter.place_kerndat})
