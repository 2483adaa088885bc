"""Trees of workers are removed at any depth, and what their links point to stays."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hotstart.snapshot_agent.sandbox.demolition import demolish


def test_deeper_than_the_interpreter_can_recurse(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(2 * sys.getrecursionlimit()):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.close(fd)
        fd = inner
    os.close(fd)
    demolish(top)
    assert list(tmp_path.iterdir()) == []


def test_links_are_removed_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("x")
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "link").symlink_to(victim)
    (top / "a" / "link").symlink_to(victim)
    (top / "a" / "b" / "file").symlink_to(victim / "file")
    demolish(top)
    assert not top.exists()
    assert (victim / "file").read_text() == "x"


def test_many_directories_of_one_name(tmp_path: Path) -> None:
    top = tmp_path / "top"
    for number in range(30):
        (top / str(number) / "same" / "same").mkdir(parents=True)
    demolish(top)
    demolish(top)
    assert list(tmp_path.iterdir()) == []
