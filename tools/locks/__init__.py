"""The Python dependencies, resolved once and pinned with hashes; ./dev lock writes the files beside this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.cache import ROOT

HERE = Path(__file__).parent
_COMMON = ("--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate", "--quiet")


def write() -> None:
    """Resolve all three: this project and its tools, the vLLM worker, what unpacks SmolLM2."""
    extras = [word for name in ("agent", "dev", "plot") for word in ("--extra", name)]
    _compile(ROOT, "pyproject.toml", HERE / "dev.in", *extras, "--output-file", HERE / "dev.txt")
    _compile(HERE / "vllm", "pyproject.toml", "--output-file", HERE / "vllm.txt")
    _compile(ROOT, HERE / "smollm2.in", "--no-deps", "--output-file", HERE / "smollm2.txt")


def _compile(directory: Path, *arguments: str | Path) -> None:
    # A directory of loose wheels on this machine must not decide what is locked for all.
    environment = {name: value for name, value in os.environ.items() if "FIND_LINKS" not in name}
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "pip", "compile", *arguments, *_COMMON], cwd=directory, env=environment, check=True)
