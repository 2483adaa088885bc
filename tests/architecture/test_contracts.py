"""The import contracts hold, and each of them does find what it forbids, behind the links in hotstart/ too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.architecture.tree import ROOT

VIOLATIONS = {
    "serving > snapshot_agent": ("hooks/control/wrong.py", "from hotstart.snapshot_agent import api"),
    "inside the agent": ("snapshot_agent/criu/wrong.py", "from hotstart.snapshot_agent.sandbox import contract"),
    "inside hooks": ("hooks/control/wrong.py", "from hotstart.hooks import engines"),
    "the agent reaches hooks": ("snapshot_agent/capture/wrong.py", "from hotstart.hooks import launcher"),
    "serving reaches the agent": ("hotstart/serving.py", "from hotstart.snapshot_agent import catalog"),
    "engines stay home": ("hooks/launcher/wrong.py", "import torch"),
    "numpy costs": ("snapshot_agent/catalog/wrong.py", "import numpy"),
    "click and rich": ("snapshot_agent/restore/wrong.py", "import rich"),
    "no two siblings": ("hooks/engines/wrong.py", "from hotstart.hooks import launcher, supervisor"),
}
"""Start of a contract's name → a module that breaks it."""


def _lint(tree: Path) -> tuple[int, dict[str, bool]]:
    """Exit code, and for each contract whether it was kept."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache", "--config", tree / ".importlinter"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
    )
    verdicts = {}
    for line in done.stdout.splitlines():
        for word, kept in (("KEPT", True), ("BROKEN", False)):
            name, found, _ = line.partition(f" {word}")
            if found:
                verdicts[name] = kept
    assert verdicts, done.stdout + done.stderr
    return done.returncode, verdicts


def _copy(target: Path) -> Path:
    for name in ("hotstart", "hooks", "snapshot_agent"):
        shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", target)
    return target


def test_every_contract_finds_its_violation(tmp_path: Path) -> None:
    tree = _copy(tmp_path)
    code, before = _lint(tree)
    assert code == 0
    assert all(before.values())
    for path, statement in VIOLATIONS.values():
        with (tree / path).open("a") as module:
            module.write(statement + "\n")
    (tree / "hooks/launcher/__init__.py").write_text("from hotstart.hooks import engines, supervisor\n")
    (tree / "hooks/supervisor/__init__.py").write_text("from hotstart.hooks import launcher\n")
    code, after = _lint(tree)
    assert code != 0
    for start in VIOLATIONS:
        matching = [kept for name, kept in after.items() if name.startswith(start)]
        assert matching == [False], f"{start}: {after}"
    assert len(after) == len(VIOLATIONS), "a contract without a violation that proves it"


def test_a_package_that_nobody_placed_is_refused(tmp_path: Path) -> None:
    tree = _copy(tmp_path)
    (tree / "snapshot_agent/somewhere.py").write_text("")
    code, after = _lint(tree)
    assert code != 0
    assert any(name.startswith("inside the agent") and not kept for name, kept in after.items())
