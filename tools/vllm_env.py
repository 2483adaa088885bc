"""The vLLM worker's virtual environment: pinned with hashes, compiled to bytecode, in the cache."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tools import stand_ins
from tools.cache import ROOT, Artifact, python_tag, recipe_hash
from tools.steps import CommandFailed, Log, step

LOCK = ROOT / "tools" / "locks" / "vllm.txt"
NEEDED_BYTES = 6 << 30
"""Wheels in uv's cache and the environment itself, while it is made."""

_RECIPE = recipe_hash(Path(__file__), Path(stand_ins.__file__), LOCK, python_tag())
ARTIFACT = Artifact("vllm", _RECIPE)


def python() -> Path:
    """The interpreter that has vLLM."""
    return ARTIFACT.path / "bin" / "python"


def ensure() -> None:
    """Make the environment if it is not there; raises StepFailed."""
    if ARTIFACT.ready():
        return
    remedy = "see whether this machine reaches its Python package index and has 6 GB of disk free"
    with step("vLLM for the CPU (3 GB)", remedy=remedy) as log:
        ARTIFACT.make(lambda staging: _build(staging, log))


def _build(staging: Path, log: Log) -> None:
    free = shutil.disk_usage(staging).free
    if free < NEEDED_BYTES:
        raise CommandFailed(f"{free >> 20} MiB free at {staging.parent}, {NEEDED_BYTES >> 20} MiB needed")
    uv = Path(sys.executable).with_name("uv")
    # Relocatable: it is made under a temporary name and then renamed.
    log.run([uv, "venv", "-q", "--relocatable", "--allow-existing", "--python", sys.executable, staging])
    target = staging / "bin" / "python"
    log.run([uv, "pip", "install", "-q", "--python", target, "--no-deps", "--require-hashes", "-r", LOCK])
    (site_packages,) = staging.glob("lib/python3.*/site-packages")
    stand_ins.write(site_packages, log)
    # Without bytecode, torch alone costs 4 s instead of 1.4 s at every start, and no cold start is an honest baseline.
    # unchecked-hash: it stays valid whatever happens to the files' times.
    compiling = ["-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", str(site_packages)]
    try:
        log.run([target, *compiling])
    except CommandFailed:
        log.note("some files are not valid Python (templates, other versions): they are not imported either")
    log.run([target, "-c", "import torch, vllm, vllm._C"])
