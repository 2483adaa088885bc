"""The zoo is proven by itself: each program, run without any capture, finds everything as it left it.

So a difference after a restore is the restore's.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.workloads import rootfs, zoo
from tests.workloads.echo import echo
from tests.workloads.zoo import Workload

SINGLE = [workload for workload in zoo.ALL if not workload.members]


def needs(workload: Workload) -> None:
    """Skip where the machine lacks something."""
    if lack := zoo.missing(workload):
        pytest.skip(f"needs {lack}")


@pytest.mark.parametrize("workload", SINGLE, ids=lambda workload: workload.name)
def test_undisturbed_it_is_as_it_was(workload: Workload, tmp_path: Path) -> None:
    needs(workload)
    with echo() as peer:
        run = zoo.start(workload, tmp_path, {"ZOO_PEER": peer})
        try:
            run.wait_ready()
            run.go()
            assert run.result() == zoo.OK
        finally:
            run.end()


def test_everything_at_once(tmp_path: Path) -> None:
    needs(zoo.EVERYTHING)
    run = zoo.start(zoo.EVERYTHING, tmp_path)
    try:
        run.wait_ready()
        run.go()
        assert run.result() == zoo.OK
    finally:
        run.end()


def test_a_program_that_cannot_prepare_says_so(tmp_path: Path) -> None:
    workload = Workload("no-lower", "rootfs.py", "finds no lower directory")
    run = zoo.start(workload, tmp_path)
    try:
        with pytest.raises(AssertionError, match="no-lower ended"):
            run.wait_ready()
    finally:
        run.end()


def test_the_file_system_is_looked_at_from_outside_too(tmp_path: Path) -> None:
    """Every change of every kind is noticed."""
    workload = zoo.BY_NAME["rootfs"]
    run = zoo.start(workload, tmp_path)
    try:
        run.wait_ready()
        assert rootfs.differences(tmp_path) == []
        lower, new = tmp_path / "lower", tmp_path / "new"
        (lower / "files" / "delete").write_text("back")
        (lower / "recreate" / "inner").mkdir()
        (lower / "files" / "linked").unlink()
        shutil.copy(lower / "files" / "link", lower / "files" / "linked")
        (lower / "files" / "keep").write_text("other")
        (new / "sticky").chmod(0o777)
        (new / "old").write_text("old\n")
        (new / "odd" / "with space").unlink()
        found = "\n".join(rootfs.differences(tmp_path))
        for expected in ("'delete'", "'inner'", "two files", "keep holds", "mode 777", "old was changed", "with space"):
            assert expected in found
        run.go()
        result = run.result()
        assert result.code == 1
        assert all(line.startswith("BAD") for line in result.said)
    finally:
        run.end()
    shutil.rmtree("/tmp/hotstart-zoo-rootfs", ignore_errors=True)
    shutil.rmtree("/dev/shm/hotstart-zoo-rootfs", ignore_errors=True)
