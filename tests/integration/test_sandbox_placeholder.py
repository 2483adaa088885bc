"""A placeholder's supervisor: waits, adopts what was restored, or cold starts and says why."""

from __future__ import annotations

import os
import signal
import time

import pytest

from hotstart.hooks.control.directory import new_nonce
from hotstart.hooks.control.protocol import Adoption
from hotstart.names import ROOT_PID
from hotstart.snapshot_agent.sandbox import local, view
from hotstart.snapshot_agent.sandbox.local import LocalSandbox
from tests.conftest import Sandboxes, eventually
from tests.integration.restored import plant

pytestmark = pytest.mark.root


def _adopt(box: LocalSandbox, nonce: str = "") -> None:
    box.control.adopt(Adoption(nonce or new_nonce(), root_pid=ROOT_PID))


def _cold_start(box: LocalSandbox, reason: str = "criu-restore-failed") -> None:
    box.control.adopt(Adoption(new_nonce(), cold_start_reason=reason))


def test_it_waits_and_takes_no_pid(sandboxes: Sandboxes) -> None:
    box = sandboxes.placeholder("sleep", "1000")
    time.sleep(0.1)
    assert view.members(box.init_pid) == [box.init_pid]
    assert box.state() == "starting"
    assert sandboxes.log(box) == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_waiting(sandboxes: Sandboxes, number: signal.Signals) -> None:
    box = sandboxes.placeholder("sleep", "1000")
    os.kill(box.init_pid, number)
    assert sandboxes.wait(box) == 128 + number


def test_cold_start_says_why_and_keeps_the_pid(sandboxes: Sandboxes) -> None:
    box = sandboxes.placeholder("sh", "-c", "echo started; exec sleep 1000")
    _cold_start(box)
    eventually(lambda: "started" in sandboxes.log(box))
    assert sandboxes.log(box) == "hotstart: restore failed (criu-restore-failed), cold starting\nstarted\n"
    assert view.root_task(box.init_pid).ns_pid == ROOT_PID
    assert (box.state(), box.reason()) == ("cold", "criu-restore-failed")


def test_an_adopted_process_gets_signals_and_gives_its_status(sandboxes: Sandboxes) -> None:
    box = sandboxes.placeholder("sleep", "1000")
    plant(box.init_pid, "trap 'exit 42' TERM; echo planted; while :; do sleep 0.01; done")
    _adopt(box)
    eventually(lambda: "planted" in sandboxes.log(box))
    time.sleep(0.05)
    os.kill(box.init_pid, signal.SIGTERM)
    assert sandboxes.wait(box) == 42


def test_one_that_died_before_the_order_came_gives_its_status(sandboxes: Sandboxes) -> None:
    box = sandboxes.placeholder("sleep", "1000")
    plant(box.init_pid, "exit 9")
    eventually(lambda: view.members(box.init_pid) == [box.init_pid])
    _adopt(box)
    assert sandboxes.wait(box) == 9


def test_deaths_in_failed_attempts_do_not_count(sandboxes: Sandboxes) -> None:
    box = sandboxes.placeholder("sleep", "1000")
    for _ in range(2):
        plant(box.init_pid, "exit 9")
        eventually(lambda: view.members(box.init_pid) == [box.init_pid])
    plant(box.init_pid, "echo third; exec sleep 1000")
    _adopt(box)
    eventually(lambda: "third" in sandboxes.log(box))
    time.sleep(0.15)
    box.alive()
    os.kill(view.root_task(box.init_pid).pid, signal.SIGKILL)
    assert sandboxes.wait(box) == 137


def test_a_tree_that_is_no_good_is_killed_for_a_cold_start(sandboxes: Sandboxes) -> None:
    """The canary was wrong: the agent may still fall back, and the pids are free again."""
    box = sandboxes.placeholder("sh", "-c", "echo cold; exec sleep 1000")
    plant(box.init_pid, "trap '' TERM; sleep 998 & sleep 999 & wait")
    _adopt(box)
    sandboxes.started(box, 3)
    time.sleep(0.05)
    _cold_start(box, "canary-mismatch")
    eventually(lambda: "cold\n" in sandboxes.log(box))
    assert "restore failed (canary-mismatch), cold starting" in sandboxes.log(box)
    assert [task.ns_pid for task in view.tree(box.init_pid)] == [ROOT_PID, ROOT_PID + 1]
    assert view.strays(box.init_pid) == []


def test_an_order_counts_once(sandboxes: Sandboxes) -> None:
    box = sandboxes.placeholder("sh", "-c", "echo cold; exec sleep 1000")
    order = Adoption(new_nonce(), cold_start_reason="x")
    box.control.adopt(order)
    eventually(lambda: "cold\n" in sandboxes.log(box))
    box.control.adopt(order)
    time.sleep(0.3)
    assert sandboxes.log(box).count("cold\n") == 1


def test_what_cannot_be_read_is_ignored(sandboxes: Sandboxes) -> None:
    box = sandboxes.placeholder("sh", "-c", "echo cold; exec sleep 1000")
    path = box.control.path / "agent" / "root"
    path.with_name("new").write_bytes(b"{")
    path.with_name("new").rename(path)
    eventually(lambda: "was ignored" in sandboxes.log(box))
    path.unlink()
    path.symlink_to("/etc/passwd")
    time.sleep(0.05)
    _cold_start(box)
    eventually(lambda: "cold\n" in sandboxes.log(box))


def test_destroy_of_a_waiting_placeholder_is_quick(sandboxes: Sandboxes) -> None:
    box = sandboxes.placeholder("sleep", "1000")
    start = time.monotonic()
    assert local.destroy(sandboxes.home, box.name) == 143
    assert time.monotonic() - start < 5
