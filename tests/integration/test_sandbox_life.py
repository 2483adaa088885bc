"""The life of a local sandbox: start, signals, exit status, output, state, and the processes between."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from hotstart.errors import HotstartError
from hotstart.hooks.control.protocol import Report, State
from hotstart.linux import procfs
from hotstart.names import ROOT_PID
from hotstart.reasons import BAD_NAME, COMMAND_NOT_FOUND, NO_SUCH_SANDBOX, SANDBOX_DEAD, SANDBOX_EXISTS, SANDBOX_START
from hotstart.snapshot_agent.sandbox import local, view
from tests.conftest import Sandboxes, eventually

pytestmark = pytest.mark.root


def _cmdline(pid: int) -> bytes:
    return procfs.read(pid, "cmdline")


def test_the_command_is_a_grandchild_of_pid_1_and_everything_is_found_from_there(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000")
    launcher, command = sandboxes.started(box, 2)
    assert launcher == view.root_task(box.init_pid)
    assert (launcher.ns_pid, command.ns_pid) == (ROOT_PID, ROOT_PID + 1)
    assert b"hotstart-supervisor" in _cmdline(box.init_pid)
    eventually(lambda: _cmdline(command.pid) == b"sleep\x001000\0")
    assert procfs.stat(launcher.pid).session == launcher.pid
    assert procfs.status(box.init_pid).ns_pids[-1] == 1
    assert view.strays(box.init_pid) == []
    assert sorted(view.members(box.init_pid)) == sorted([box.init_pid, launcher.pid, command.pid])


def test_it_is_found_again_by_another_process(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000", labels={"a": "b"}, groups=(7, 8))
    script = (
        "import sys; from pathlib import Path; from hotstart.snapshot_agent.sandbox import local; "
        "box = local.load(Path(sys.argv[1]), sys.argv[2]); box.alive(); "
        "print(box.init_pid, box.address, box.spec == eval(sys.argv[3], {'SandboxSpec': type(box.spec)}))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script, sandboxes.home, box.name, repr(box.spec)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.split() == [str(box.init_pid), box.address, "True"]
    assert [found.name for found in local.list_all(sandboxes.home)] == [box.name]


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", 139), ("kill -9 $$", 137)]
)
def test_the_exit_status_comes_through(sandboxes: Sandboxes, script: str, status: int) -> None:
    box = sandboxes.shell(script)
    assert sandboxes.wait(box) == status
    assert box.state() == "exited"
    with pytest.raises(HotstartError) as caught:
        box.alive()
    assert caught.value.reason is SANDBOX_DEAD
    assert f"status {status}" in caught.value.detail


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"])
def test_signals_reach_the_command(sandboxes: Sandboxes, name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    box = sandboxes.shell(f"trap 'echo got {name}; exit 42' {name}; echo waiting; while :; do sleep 0.01; done")
    eventually(lambda: "waiting" in sandboxes.log(box))
    os.kill(box.init_pid, number)
    assert sandboxes.wait(box) == 42
    assert f"got {name}" in sandboxes.log(box)


def test_what_the_starter_ignores_is_not_ignored_by_the_command(sandboxes: Sandboxes) -> None:
    """As under nohup: a shell cannot even trap a signal that it was started with ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        box = sandboxes.run("sleep", "1000")
    finally:
        signal.signal(signal.SIGHUP, before)
    os.kill(box.init_pid, signal.SIGHUP)
    assert sandboxes.wait(box) == 128 + signal.SIGHUP


def test_a_signal_that_comes_before_the_interpreter_has_started_is_not_lost(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000")
    os.kill(box.init_pid, signal.SIGTERM)
    assert sandboxes.wait(box) == 143


def test_stop_is_gentle_first_and_returns_the_status(sandboxes: Sandboxes) -> None:
    box = sandboxes.shell("trap 'echo bye; exit 3' TERM; echo waiting; while :; do sleep 0.01; done")
    eventually(lambda: "waiting" in sandboxes.log(box))
    assert local.destroy(sandboxes.home, box.name) == 3
    assert local.destroy(sandboxes.home, box.name) is None
    with pytest.raises(HotstartError) as caught:
        sandboxes.load(box)
    assert caught.value.reason is NO_SUCH_SANDBOX


def test_who_does_not_listen_is_killed(sandboxes: Sandboxes) -> None:
    box = sandboxes.shell("trap '' TERM; echo waiting; while :; do sleep 0.01; done")
    eventually(lambda: "waiting" in sandboxes.log(box))
    assert local.destroy(sandboxes.home, box.name, grace_s=0.2) == 137


def test_output_is_in_the_log_to_the_last_byte(sandboxes: Sandboxes) -> None:
    box = sandboxes.shell("i=0; while [ $i -lt 20000 ]; do echo $i; echo $i >&2; i=$((i+1)); done; printf end >&2")
    sandboxes.wait(box)
    log = sandboxes.log(box)
    lines = log.split()
    assert lines.count("19999") == 2
    assert sum(int(line) for line in lines if line.isdigit()) == 2 * sum(range(20000))
    assert log.endswith("end")
    assert box.last_words().endswith("end")


def test_standard_input_stays_open_and_silent(sandboxes: Sandboxes) -> None:
    box = sandboxes.shell("exec 3<&0; (cat <&3; echo eof) & sleep 0.3; echo done")
    sandboxes.wait(box)
    assert sandboxes.log(box) == "done\n"
    assert all(name.startswith("pipe:[") for name in view.stdio(sandboxes.run("sleep", "1000").init_pid))


def test_a_command_that_does_not_exist(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("no-such-program", "x")
    assert sandboxes.wait(box) == 127
    assert sandboxes.log(box).splitlines() == [
        f"hotstart: command-not-found: no-such-program (PATH is {box.spec.env['PATH']})"
    ]
    with pytest.raises(HotstartError) as caught:
        box.alive()
    assert caught.value.reason is COMMAND_NOT_FOUND


def test_a_working_directory_that_does_not_exist(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("true", cwd="/no/such")
    assert sandboxes.wait(box) == 126
    assert sandboxes.log(box) == "hotstart: sandbox-start: the working directory /no/such: No such file or directory\n"


def test_arguments_and_environment_arrive_unchanged(sandboxes: Sandboxes) -> None:
    words = ["", "two words", "new\nline", "quote\"'", "ünïcödé"]
    box = sandboxes.run(
        sys.executable,
        "-c",
        "import os, sys; print(sys.argv[1:], os.environ['ODD'], os.getcwd(), flush=True)",
        *words,
        env={"PATH": "/bin", "ODD": "a=b\nc", "PYTHONUTF8": "1"},
        cwd="/usr/lib",
        engine="none",
    )
    sandboxes.wait(box)
    assert sandboxes.log(box) == f"{words!r} a=b\nc /usr/lib\n"


def test_pid_1_reaps_and_the_launcher_keeps_orphans(sandboxes: Sandboxes) -> None:
    """A daemonised grandchild stays below the launcher: below pid 1 a capture would lose it."""
    box = sandboxes.shell("(setsid sh -c 'sleep 1000 & exec sleep 1001' & ) ; (sleep 0.01 &) ; sleep 1002")
    sandboxes.started(box, 5)
    launcher = view.root_task(box.init_pid).pid

    def parents() -> dict[bytes, int]:
        found = {}
        for task in view.tree(box.init_pid):
            with contextlib.suppress(OSError):  # the short-lived one
                found[_cmdline(task.pid)] = procfs.stat(task.pid).parent
        return found

    eventually(lambda: parents().get(b"sleep\x001001\0") == launcher)
    eventually(lambda: b"sleep\x001000\0" in parents())
    assert view.strays(box.init_pid) == []
    eventually(lambda: len(view.members(box.init_pid)) == 6)  # all that were meant to stay; nothing unreaped


def test_a_stray_is_found(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000")
    sandboxes.started(box, 2)
    with subprocess.Popen(["nsenter", "-t", str(box.init_pid), "-p", "-m", "sleep", "999"]) as stray:
        try:
            eventually(lambda: len(view.strays(box.init_pid)) == 1)
            assert view.strays(box.init_pid)[0].ns_pid > ROOT_PID
        finally:
            stray.kill()


def test_the_state_is_what_worker_and_processes_say(sandboxes: Sandboxes) -> None:
    plain = sandboxes.run("sleep", "1000", engine="none")
    assert plain.state() == "running"
    box = sandboxes.run("sleep", "1000")
    assert box.state() == "starting"
    for said, shown in ((State.READY, "ready"), (State.QUIESCED, "quiesced"), (State.RESUMED, "ready")):
        box.control.report(Report(said, "n", "plain"))
        assert (box.state(), box.reason()) == (shown, "")
    box.control.report(Report(State.FAILED, "n", "plain", reason="canary-mismatch", detail="token 3"))
    assert (box.state(), box.reason()) == ("failed", "canary-mismatch token 3")
    (box.control.path / "worker" / "state").write_text("{}")
    assert box.state() == "failed"
    assert "cannot be read" in box.reason()
    os.kill(box.init_pid, signal.SIGKILL)
    assert sandboxes.wait(box) == 137
    assert box.state() == "exited"


def test_the_sandbox_outlives_its_maker(sandboxes: Sandboxes) -> None:
    spec = sandboxes.spec("sleep", "1000")
    script = (
        "import sys; from pathlib import Path; from hotstart.snapshot_agent.sandbox import local; "
        "from hotstart.snapshot_agent.sandbox.contract import SandboxSpec; "
        "spec = SandboxSpec(sys.argv[2], ('sleep', '1000'), {'PATH': '/bin'}); "
        "local.create(Path(sys.argv[1]), spec, placeholder=False)"
    )
    done = subprocess.run([sys.executable, "-c", script, sandboxes.home, spec.name], check=True, start_new_session=True)
    assert done.returncode == 0
    local.load(sandboxes.home, spec.name).alive()


def test_names(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000")
    with pytest.raises(HotstartError) as caught:
        sandboxes.run("true", name=box.name)
    assert caught.value.reason is SANDBOX_EXISTS
    for name in ("../x", ".hidden", "A"):
        with pytest.raises(HotstartError) as caught:
            sandboxes.run("true", name=name)
        assert caught.value.reason is BAD_NAME
    box.alive()


@pytest.mark.parametrize("command", [(), ("a\0b",), ("not utf-8 \udcff",)])
def test_what_cannot_be_a_command_is_refused_with_nothing_left(sandboxes: Sandboxes, command: tuple[str, ...]) -> None:
    with pytest.raises(HotstartError) as caught:
        sandboxes.run(*command)
    assert caught.value.reason is SANDBOX_START
    assert local.list_all(sandboxes.home) == []


def test_eight_at_once(sandboxes: Sandboxes) -> None:
    made: list[local.LocalSandbox] = []
    threads = [threading.Thread(target=lambda: made.append(sandboxes.placeholder("sleep", "1"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({box.address for box in made}) == 8
    for box in made:
        box.alive()


def test_the_sandbox_runs_on_when_its_shim_dies(sandboxes: Sandboxes) -> None:
    """The worker is neither killed by SIGPIPE nor blocked by a full pipe; what it writes is lost."""
    box = sandboxes.shell("i=0; while :; do head -c 20000 /dev/zero; i=$((i+1)); echo $i >/rounds; sleep 0.01; done")
    eventually(lambda: sandboxes.log(box))
    assert box.live is not None
    os.kill(box.live.shim_pid, signal.SIGKILL)

    def rounds() -> int:
        with contextlib.suppress(FileNotFoundError):
            return int((box.directory / "upper" / "rounds").read_text() or 0)
        return 0

    before = rounds()
    eventually(lambda: rounds() > before + 10, 30)  # three times what a pipe holds
    box.alive()
    assert local.destroy(sandboxes.home, box.name) is None
