"""Fixtures that several suites share: real namespaces, mounts, cgroups, links and processes, nothing replaced."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotstart.errors import HotstartError
from hotstart.hooks.control.start import SITE_PATH
from hotstart.linux import procfs
from hotstart.snapshot_agent.sandbox import cgroups, local, view
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec
from hotstart.snapshot_agent.sandbox.local import LocalSandbox
from hotstart.snapshot_agent.sandbox.view import Task
from tools import setup

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a runner under nohup hands it down ignored, and tests send it
os.environ.update(setup.found())  # what ./dev setup has made, also for a pytest that is started by hand

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need root are skipped without it; CRIU and vLLM tests make sandboxes, so they need it too."""
    if os.geteuid() == 0:
        return
    for item in items:
        if {"root", "criu", "vllm"} & {mark.name for mark in item.iter_markers()}:
            item.add_marker(pytest.mark.skip(reason="needs root"))


def eventually(what: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until ``what`` is true; fails otherwise."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, f"did not happen within {seconds} s"
        time.sleep(0.005)


class Sandboxes:
    """Makes sandboxes in one home, under names that nobody else uses, and removes them all in the end."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def spec(self, *command: str, name: str = "", **more: Any) -> SandboxSpec:
        """A specification with a fresh name and a plain environment."""
        fields = {"env": dict(ENV), **more}
        return SandboxSpec(name or f"t{secrets.token_hex(4)}", command, **fields)

    def run(self, *command: str, **more: Any) -> LocalSandbox:
        """Start a command."""
        return local.create(self.home, self.spec(*command, **more), placeholder=False)

    def shell(self, script: str, **more: Any) -> LocalSandbox:
        """Start a shell script."""
        return self.run("/bin/sh", "-c", script, **more)

    def placeholder(self, *command: str, **more: Any) -> LocalSandbox:
        """Make a placeholder."""
        return local.create(self.home, self.spec(*command, **more), placeholder=True)

    def load(self, sandbox: LocalSandbox) -> LocalSandbox:
        """The same sandbox as another process finds it."""
        return local.load(self.home, sandbox.name)

    def log(self, sandbox: LocalSandbox) -> str:
        """What the worker wrote so far."""
        with contextlib.suppress(FileNotFoundError):
            return sandbox.log_path.read_text(errors="replace")
        return ""

    def wait(self, sandbox: LocalSandbox, seconds: float = 20.0) -> int:
        """Wait until it has ended; its exit status."""
        eventually(lambda: sandbox.exit_status() is not None, seconds)
        status = sandbox.exit_status()
        assert status is not None
        return status

    def output(self, script: str, **more: Any) -> str:
        """Run a shell script to its end; what it wrote, through one pipe.  The sandbox is removed."""
        sandbox = self.shell(f"exec 2>&1; {script}", **more)
        self.wait(sandbox)
        text = self.log(sandbox)
        local.destroy(self.home, sandbox.name)
        return text

    def started(self, sandbox: LocalSandbox, processes: int, seconds: float = 20.0) -> list[Task]:
        """Wait until the worker's tree has that many processes; the tree."""
        found: list[Task] = []

        def complete() -> bool:
            found.clear()
            with contextlib.suppress(HotstartError):  # the supervisor has not started it yet
                found.extend(view.tree(sandbox.init_pid))
            return len(found) == processes

        eventually(complete, seconds)
        return found

    def destroy_all(self) -> None:
        """Remove everything."""
        names = [sandbox.name for sandbox in local.list_all(self.home)] + list(local.unreadable(self.home))
        for name in names:
            local.destroy(self.home, name, grace_s=0)


def traces(home: Path) -> list[str]:
    """What the sandboxes of ``home`` have on the machine: processes, mounts, cgroups, directories."""
    found = [str(path) for path in home.glob("sandboxes/*")] + [str(path) for path in home.glob("sandboxes/.*")]
    suffix = cgroups.name_of(home, "")
    for hierarchy in cgroups.hierarchies(procfs.mountinfo("self")):
        found += [str(path) for path in (hierarchy.point / cgroups.PARENT).glob(f"*{suffix}")]
    for pid in procfs.pids():
        with contextlib.suppress(OSError):
            seen = procfs.read(pid, "mountinfo")
            if os.fsencode(f"{home}/") in seen or (SITE_PATH.encode() in seen and os.fsencode(str(home)) in seen):
                found.append(f"pid {pid} lives in a sandbox")
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{fd}")
                    if target.startswith(f"{home}/sandboxes/"):
                        found.append(f"pid {pid} holds {target}")
    return found


@pytest.fixture
def sandboxes(tmp_path: Path) -> Iterator[Sandboxes]:
    """Sandboxes in a home of their own; at the end nothing of them may be left on the machine."""
    home = (tmp_path / "home").resolve()
    maker = Sandboxes(home)
    try:
        yield maker
    finally:
        maker.destroy_all()
    assert traces(home) == []
