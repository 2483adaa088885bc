"""The tree as a whole: nothing in it knows the machine it was written on, or the registry it was installed from."""

from __future__ import annotations

import re
import tomllib

from tests.architecture.tree import ROOT, text_files

_HOSTS = (
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("deb", "debian", "org"),
    ("security", "debian", "org"),
    ("snapshot", "debian", "org"),
    ("ftp", "debian", "org"),
    ("proxy", "golang", "org"),
    ("sum", "golang", "org"),
    ("registry", "npmjs", "org"),
    ("download", "pytorch", "org"),
    ("huggingface", "co"),
    ("crates", "io"),
)
"""Written in pieces, or this file would find itself."""
REGISTRY = re.compile("|".join(r"\.".join(parts) for parts in _HOSTS))
MACHINE = re.compile("|".join(rf"(?<![\w.$}}/-])/{top}/[\w.]" for top in ("work", "home", "tmp/g")))
"""Absolute paths of one person's machine."""


def test_no_registry_is_named() -> None:
    """Where packages come from is the machine's business: a mirror must work without a change here."""
    found = [f"{path.relative_to(ROOT)}" for path in text_files() if REGISTRY.search(path.read_text(errors="replace"))]
    assert not found


def test_no_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in text_files()
        if (match := MACHINE.search(path.read_text(errors="replace")))
    ]
    assert not found


def test_links_of_the_two_parts() -> None:
    for name in ("hooks", "snapshot_agent"):
        link = ROOT / "hotstart" / name
        assert link.is_symlink()
        assert str(link.readlink()) == f"../{name}"


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        re.split(r"[<>=!~;\[ ]", requirement)[0].lower().replace("_", "-")
        for extra in project["optional-dependencies"].values()
        for requirement in extra
    }
    lock = (ROOT / "tools/locks/dev.txt").read_text()
    locked = {match.group(1) for match in re.finditer(r"^([a-z0-9.-]+)==", lock, re.MULTILINE)}
    assert not wanted - locked, "./dev lock writes the lock anew"
    assert "--hash=sha256:" in lock
