"""The supervisor without a local sandbox around it, as in a pod: no shim, no spare descriptors, /proc/sys read-only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotstart.hooks.control.start import Start, encode
from hotstart.names import ROOT_PID
from hotstart.snapshot_agent.sandbox import inject, view
from tests.conftest import eventually

pytestmark = pytest.mark.root

POD = """
import os, sys
from hotstart.hooks.control.start import SITE_PATH, START_PATH, supervisor_command
from hotstart.linux.syscalls import *

mode, start, site = sys.argv[1:]
unshare(CLONE_NEWNS)
mount("", "/", flags=MS_REC | MS_PRIVATE)
init = fork_into(CLONE_NEWPID)
if init:
    print(init, flush=True)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]) & 0xFF)
mount("proc", "/proc", "proc")
mount("/proc/sys", "/proc/sys", flags=MS_BIND)
mount("", "/proc/sys", flags=MS_REMOUNT | MS_BIND | MS_RDONLY)
mount("run", "/run", "tmpfs")
os.makedirs(SITE_PATH)
os.makedirs("/run/hotstart/control/agent")
mount(site, SITE_PATH, flags=MS_BIND)
with open(START_PATH, "wb") as file:
    file.write(bytes.fromhex(start))
argv = supervisor_command(sys.executable, mode, spare=False)
os.execve(argv[0], argv, {})
"""


class Pod:
    """A supervisor in a pid namespace."""

    def __init__(self, mode: str, script: str, site: Path) -> None:
        start = encode(Start(("/bin/sh", "-c", script), {"PATH": "/usr/bin:/bin"}))
        self.process = subprocess.Popen(
            [sys.executable, "-c", POD, mode, start.hex(), str(site)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.init = int(self.process.stdout.readline())

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[list[Pod]]:
    made: list[Pod] = []
    yield made
    for pod in made:
        if pod.process.poll() is None:
            os.kill(pod.init, signal.SIGKILL)
        pod.process.communicate()


def test_pids_are_burnt_where_they_cannot_be_chosen(pods: list[Pod], tmp_path: Path) -> None:
    pod = Pod(
        "run", "echo $PPID; trap 'exit 42' TERM; echo waiting; while :; do sleep 0.01; done", inject.site(tmp_path)
    )
    pods.append(pod)
    assert pod.line() == str(ROOT_PID)
    assert pod.line() == "waiting"
    assert view.root_task(pod.init).ns_pid == ROOT_PID
    os.kill(pod.init, signal.SIGTERM)
    assert pod.process.wait(20) == 42


def test_a_worker_whose_pid_is_taken_runs_all_the_same(pods: list[Pod], tmp_path: Path) -> None:
    """After a failed restore CRIU has used pids far beyond: the cold start cannot be captured, and says so."""
    pod = Pod("placeholder", "echo started; exec sleep 1000", inject.site(tmp_path))
    pods.append(pod)
    subprocess.run(
        ["nsenter", "-t", str(pod.init), "-p", "-m", "sh", "-c", "for i in $(seq 150); do /bin/true; done"], check=True
    )
    order = Path(f"/proc/{pod.init}/root/run/hotstart/control/agent/root")
    order.with_name("new").write_text('{"nonce":"a","root_pid":0,"cold_start_reason":"pid-taken"}')
    order.with_name("new").rename(order)
    assert pod.line() == "hotstart: restore failed (pid-taken), cold starting"
    assert "cannot be captured" in pod.line()
    assert pod.line() == "started"
    eventually(lambda: len(view.members(pod.init)) == 3)
