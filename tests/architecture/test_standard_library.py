"""What runs inside the user's container imports the standard library alone, and nothing under a generic name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.architecture.tree import ROOT, Module, modules

LIGHT = tuple(module for module in modules("hotstart", "hooks") if not module.name.startswith("hooks/engines/vllm/"))


def _imported(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.name}:{node.lineno}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("module", LIGHT, ids=lambda module: module.name)
def test_imports_the_standard_library_alone(module: Module) -> None:
    foreign = {
        name for name in _imported(module) if name.partition(".")[0] not in {"hotstart", *sys.stdlib_module_names}
    }
    assert not foreign


def test_linked_directories_are_imported_under_their_one_name() -> None:
    """A second name would make every class exist twice."""
    wrong = {
        f"{module.name}: {name}"
        for module in modules("hotstart", "hooks", "snapshot_agent", "tools", "benchmarks")
        for name in _imported(module)
        if name.partition(".")[0] in {"hooks", "snapshot_agent", "gms", "serving"}
    }
    assert not wrong


def test_ground_floor_and_control_load_without_site_packages() -> None:
    """As a user's container loads them: isolated, no site-packages, only the tree on the path."""
    names = [
        module.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for module in modules("hotstart")
    ] + ["hotstart.hooks.control.directory", "hotstart.hooks.control.protocol"]
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import " + ", ".join(names)
    done = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_restore_imports_nothing_heavy() -> None:
    """All of it is on the way to the first token: numpy alone would be a third of it."""
    heavy = {"numpy", "click", "rich", "matplotlib", "asyncio", "ssl", "email", "http", "unittest", "liburing"}
    code = "import sys, hotstart.snapshot_agent.api; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())
