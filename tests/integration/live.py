"""The engine on real workers, as integration tests use it: start, ask, capture, restore, look for what is left."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks import client
from benchmarks.client import Answer
from hotstart.errors import HotstartError
from hotstart.linux import procfs
from hotstart.names import CRIU_ENV
from hotstart.snapshot_agent import api
from hotstart.snapshot_agent.sandbox import local, view
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec
from tests.conftest import ENV, traces

PROMPTS = ("The capital of France is", "one two three", "", "Ünïcödé")
PLAIN = (sys.executable, "-m", "hotstart.hooks.engines.plain")
TOKENS = 6
needs_criu = pytest.mark.skipif(not os.environ.get(CRIU_ENV), reason=f"{CRIU_ENV} is not set; ./dev test sets it")


@dataclass
class Live:
    """Sandboxes and snapshots of one home."""

    home: Path

    def fresh(self, prefix: str = "c") -> str:
        """A name that nobody uses."""
        return f"{prefix}{secrets.token_hex(3)}"

    def start(self, *arguments: str, name: str = "", command: tuple[str, ...] = PLAIN, **more: Any) -> api.SandboxInfo:
        """Start a worker (the plain one) and wait until it is ready."""
        spec = SandboxSpec(name or self.fresh("s"), (*command, *arguments), **{"env": dict(ENV), **more})
        api.run(self.home, spec)
        return api.wait_ready(self.home, spec.name, 30)

    def capture(self, sandbox: str, name: str = "", **more: Any) -> api.SnapshotInfo:
        """Capture."""
        return api.create_snapshot(self.home, sandbox, name or self.fresh("snap"), **{"timeout_s": 60, **more})

    def restore(self, snapshot: str, *names: str, copies: int = 1, **more: Any) -> list[api.RestoreResult]:
        """Restore; a cold start counts as failure unless it is asked for."""
        wanted = names or tuple(self.fresh() for _ in range(copies))
        return api.restore(self.home, snapshot, wanted, **{"cold_start": False, "timeout_s": 60, **more})

    def stop(self, *names: str) -> None:
        """Remove sandboxes."""
        for name in names:
            api.stop(self.home, name, grace_s=0)

    def info(self, name: str) -> api.SandboxInfo:
        """What ``ps`` says of one sandbox."""
        return next(info for info in api.sandboxes(self.home, measure=True) if info.name == name)

    def sandbox(self, name: str) -> local.LocalSandbox:
        """The sandbox itself."""
        return local.load(self.home, name)

    def log(self, name: str) -> str:
        """What the worker wrote."""
        return api.log_path(self.home, name).read_text(errors="replace")

    def traces_of_captures(self, *sources: str) -> list[str]:
        """What captures and restores can leave: in the home, on the machine, and inside the sources."""
        found = [f"host: {mount.point}" for mount in procfs.mountinfo("self") if str(self.home) in mount.point]
        found += [f"home: {path.relative_to(self.home)}" for path in self.home.glob("scratch/*")]
        found += [f"home: {path.relative_to(self.home)}" for path in self.home.glob("snapshots/.*")]
        found += [f"helper {pid}" for pid in helpers()]
        for source in sources:
            init = self.sandbox(source).init_pid
            root = Path(f"/proc/{init}/root")
            found += [f"{source}: /dev/shm/{name}" for name in sorted(os.listdir(root / "dev/shm"))]
            found += [f"{source}: /run/{name}" for name in sorted(os.listdir(root / "run"))]
            found += [f"{source}: {mount.point}" for mount in procfs.mountinfo(init)]
            found += [f"{source}: {len(view.members(init))} processes"]
            found += [f"{source}: {path}" for path in view.cgroup_dirs(init)]
            found += [f"{source}: {(view.freezer_dir(init) / 'freezer.state').read_text()}"]
            found += [f"{source}: {path.name}" for path in self.sandbox(source).control.path.rglob(".*")]
        return sorted(found)

    def close(self) -> None:
        """Remove all sandboxes; nothing may be left of them."""
        for name in [sandbox.name for sandbox in local.list_all(self.home)] + list(local.unreadable(self.home)):
            local.destroy(self.home, name, grace_s=0)
        assert traces(self.home) == []
        assert self.traces_of_captures() == []


def helpers() -> list[int]:
    """Children of this process that enter sandboxes (Hotstart's helpers), and every CRIU below them."""
    found = []
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError):
            words = procfs.read(pid, "cmdline")
            if any(word in words for word in (b"capture.inside", b"restore.inside", b"\0swrk\0")):
                found.append(pid)
    return found


def _descendants(pid: int) -> list[int]:
    found, queue = [], [pid]
    while queue:
        with contextlib.suppress(OSError):
            children = procfs.children(queue.pop())
            found += children
            queue += children
    return found


def ask(address: str, prompt: str = PROMPTS[0], tokens: int = TOKENS) -> Answer:
    """One greedy answer."""
    return client.complete(address, prompt, tokens, timeout_s=60)


def ask_all(address: str) -> list[Answer]:
    """Answers to all prompts."""
    return [ask(address, prompt) for prompt in PROMPTS]


def ask_patiently(address: str, seconds: float = 30.0) -> list[Answer]:
    """Answers of a worker that may still be starting."""
    until = time.monotonic() + seconds
    while True:
        try:
            return ask_all(address)
        except (OSError, http.client.HTTPException):
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def identity(address: str) -> dict[str, Any]:
    """What two copies must not share."""
    connection = http.client.HTTPConnection(address, client.PORT, timeout=10)
    try:
        connection.request("GET", "/identity")
        value: dict[str, Any] = json.loads(connection.getresponse().read())
        return value
    finally:
        connection.close()


def reason_of(call: Any) -> str:
    """The reason code with which ``call`` fails."""
    with pytest.raises(HotstartError) as caught:
        call()
    return caught.value.reason.code
