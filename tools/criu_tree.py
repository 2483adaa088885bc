"""CRIU with its loader and libraries, unpacked from a newer Debian suite into the cache; nothing is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tools import debian
from tools.cache import Artifact, recipe_hash
from tools.steps import CommandFailed, Log, step

SUITES = ("testing", "unstable")
"""Tried in this order; the first whose CRIU is new enough is taken."""
MINIMUM = (4, 2)

_PRELOAD = Path(__file__).resolve().parent.parent / "snapshot_agent" / "criu" / "preload.c"
_RECIPE = recipe_hash(Path(__file__), Path(debian.__file__), _PRELOAD)
ARTIFACT = Artifact("criu", _RECIPE)


def tree() -> Path:
    """Where the tree is, or will be: what HOTSTART_CRIU must name."""
    return ARTIFACT.path / "tree"


def ensure() -> None:
    """Make the tree if it is not there; raises StepFailed."""
    if ARTIFACT.ready():
        return
    with step("CRIU (unpacked, not installed)", remedy="see whether apt-get update works on this machine") as log:
        ARTIFACT.make(lambda staging: _build(staging, log))


def _build(staging: Path, log: Log) -> None:
    target = staging / "tree"
    for suite in SUITES:
        debian.unpack("criu", suite, target, log)
        found = _version(target)
        log.note(f"{suite}: CRIU {'.'.join(map(str, found))}")
        shutil.rmtree(staging / ".tree.apt")
        if found >= MINIMUM:
            library = target / "hotstart-preload.so"
            log.run(["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", library, _PRELOAD])
            return
        shutil.rmtree(target)
    raise CommandFailed(f"none of Debian's {' and '.join(SUITES)} has CRIU {MINIMUM[0]}.{MINIMUM[1]} or newer")


def _version(target: Path) -> tuple[int, ...]:
    loader = next(path for path in target.glob("usr/lib*/ld-linux-*.so.*"))
    libraries = ":".join(str(path) for path in target.glob("usr/lib/*-linux-gnu"))
    command: list[str | Path] = [loader, "--library-path", libraries, target / "usr/sbin/criu", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    words = done.stdout.split()
    if done.returncode or "Version:" not in words:
        raise CommandFailed(f"the unpacked CRIU does not start: {done.stderr.strip() or done.stdout.strip()}")
    return tuple(int(number) for number in words[words.index("Version:") + 1].split("."))
