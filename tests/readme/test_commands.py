"""The README's commands, typed into a shell from top to bottom, on a real vLLM worker."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.root, pytest.mark.criu, pytest.mark.vllm, pytest.mark.timeout(600)]


def _use_it() -> str:
    text = (ROOT / "README.md").read_text()
    found = re.search(r"^## Use it\n+```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found is not None, "the README has lost its section 'Use it'"
    return found[1]


def test_every_command_of_the_readme_works(tmp_path: Path) -> None:
    script = "set -euxo pipefail\n" + _use_it()
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=ROOT,
            env={**os.environ, "HOTSTART_HOME": str(tmp_path / "home"), "COLUMNS": "160"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=580,
            check=False,
        )
    finally:
        subprocess.run(
            [ROOT / ".venv" / "bin" / "hotstart", "--home", tmp_path / "home", "stop", "--all", "--grace", "0"],
            capture_output=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for name in ("copy-1", "copy-2", "copy-3"):
        assert re.search(rf"^{name} +restored +10\.", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^warm +intact", done.stdout, re.MULTILINE), done.stdout
