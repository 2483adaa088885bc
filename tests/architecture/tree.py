"""The tree as the architecture tests see it: every source file, parsed once."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("hotstart", "hooks", "snapshot_agent")
EVERYTHING = (*PRODUCT, "tools", "benchmarks")


@dataclass(frozen=True)
class Module:
    """One source file."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Path relative to the work tree."""
        return str(self.path.relative_to(ROOT))


@cache
def modules(*tops: str) -> tuple[Module, ...]:
    """All handwritten Python files below the directories, links not followed."""
    found = []
    for top in tops:
        for path in sorted((ROOT / top).rglob("*.py")):
            if path.name.endswith("_pb2.py") or any(parent.is_symlink() for parent in path.parents):
                continue
            text = path.read_text()
            found.append(Module(path, text, ast.parse(text, str(path))))
    return tuple(found)


@cache
def text_files() -> tuple[Path, ...]:
    """Every file that is, or will be, committed and that is text."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    paths = (ROOT / name.decode() for name in listed.split(b"\0") if name)
    return tuple(path for path in paths if path.is_file() and not path.is_symlink() and b"\0" not in path.read_bytes())
