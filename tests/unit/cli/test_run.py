"""``hotstart run``: what becomes of its arguments, and what is printed."""

import os
import re

import pytest

from hotstart.errors import HotstartError
from hotstart.reasons import DEADLINE, SANDBOX_DEAD
from tests.unit.cli.samples import SECRET, sandbox


@pytest.fixture
def started(answers, tmp_path):
    """Run succeeds and the engine becomes ready; gives the calls."""
    return answers(
        run=lambda home, spec: sandbox(spec.name, state="starting"),
        wait_ready=lambda home, name, timeout_s: sandbox(name, state="ready"),
        log_path=tmp_path / "log",
    )


def spec(calls):
    return calls["run"][-1][0][1]


def test_name_address_and_state_are_printed(call, started) -> None:
    called = call("run", "--name", "chat", "--", "vllm", "serve", "model")
    assert called.code == 0
    assert called.out == "NAME  ADDRESS     STATE  ENGINE\nchat  10.231.0.2  ready  vllm\n"
    assert called.err == "hotstart: waiting for the engine in chat\n"
    assert [args[1:] for args, _ in started["wait_ready"]] == [("chat", 900.0)]


def test_the_command_is_not_changed(call, started) -> None:
    for arguments in (["--", "serve", "--name", "x", "--", "-v"], ["serve", "--name", "x", "--", "-v"]):
        assert call("run", *arguments).code == 0
        assert spec(started).command == ("serve", "--name", "x", "--", "-v")
        assert re.fullmatch(r"serve-[a-z0-9]{4}", spec(started).name)


def test_no_wait_and_programs_without_engine(call, started) -> None:
    assert "starting" in call("run", "--no-wait", "--", "serve").out
    assert "starting" in call("run", "--engine", "none", "--", "serve").out
    assert "wait_ready" not in started
    assert spec(started).engine == "none"


def test_everything_that_can_be_said_of_a_sandbox(call, started, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    called = call(
        "run",
        *("--user", "1000:1001", "--env", "A=1", "-e", "B=2=3", "--clean-env", "--tmpfs", "/scratch/"),
        *("--volume", "models:/models", "-v", "/etc/hostname:/x/../y:rw", "--rootfs", str(tmp_path)),
        *("--label", "team=chat", "--label", "empty=", "--no-wait", "-o", "json", "--", "serve"),
    )
    assert called.code == 0
    made = spec(started)
    assert (made.uid, made.gid, made.groups) == (1000, 1001, ())
    assert made.env["HOME"] == "/"
    assert (made.env["A"], made.env["B"]) == ("1", "2=3")
    assert made.tmpfs == ("/scratch",)
    assert [(v.source, v.target, v.read_only) for v in made.volumes] == [
        (str(tmp_path / "models"), "/models", True),
        ("/etc/hostname", "/y", False),
    ]
    assert made.rootfs == str(tmp_path)
    assert made.cwd == "/"
    assert made.labels == {"team": "chat", "empty": ""}
    assert called.json()["name"] == made.name


def test_here_is_the_working_directory(call, started, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    call("run", "--no-wait", "--", "serve")
    assert spec(started).cwd == str(tmp_path)
    call("run", "--no-wait", "--cwd", "sub", "--", "serve")
    assert spec(started).cwd == str(tmp_path / "sub")


def test_a_working_directory_that_is_gone(call, started, tmp_path, monkeypatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    called = call("run", "--", "serve")
    assert called.code == 2
    assert "the current directory no longer exists" in called.error_line()
    assert "run" not in started


def test_the_caller_is_the_default_user_and_a_name_brings_its_home(call, started) -> None:
    call("run", "--no-wait", "--", "serve")
    assert (spec(started).uid, spec(started).gid) == (0, os.getegid())
    call("run", "--no-wait", "--user", "nobody", "--", "serve")
    made = spec(started)
    assert (made.uid, made.gid) == (65534, 65534)
    assert made.env["USER"] == made.env["LOGNAME"] == "nobody"
    assert made.env["HOME"] == "/nonexistent"
    call("run", "--no-wait", "--user", "3999999999", "--", "serve")
    made = spec(started)
    assert (made.uid, made.gid, made.env["HOME"]) == (3999999999, 3999999999, "/")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--user", "nosuchuser"], "'nosuchuser': the host has no user of that name"),
        (["--user", "nobody", "--rootfs", "/usr"], "with --rootfs only numbers are understood"),
        (["--user", "0:staff"], "the group is not a number"),
        (["--user", "4294967295"], "ids end at 4294967294"),
        (["--user", ""], "no user of that name"),
        (["--env", "=x"], "is not NAME=VALUE"),
        (["--env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE is not set here"),
        (["--tmpfs", "scratch"], "'scratch' is not an absolute path below /"),
        (["--tmpfs", "/"], "'/' is not an absolute path below /"),
        (["--volume", "/etc"], "'/etc' is not SRC:DST or SRC:DST:rw"),
        (["--volume", "/etc:/x:rx"], "is not SRC:DST or SRC:DST:rw"),
        (["--volume", "/no/such/thing:/x"], "/no/such/thing does not exist"),
        (["--volume", "/etc:x"], "'x' is not an absolute path below /"),
        (["--rootfs", "/no/such/thing"], "'/no/such/thing' does not exist"),
        (["--label", "x"], "'x' is not KEY=VALUE"),
        (["--wait-timeout", "soon"], "'soon' is not a number of seconds"),
        (["--engine", "sglang"], "'sglang' is not one of 'auto', 'none'"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_happens(
    call, started, arguments: list[str], words: str
) -> None:
    called = call("run", *arguments, "--", "serve")
    assert called.code == 2
    assert words in called.error_line()
    assert "run" not in started


def test_withheld_secrets_are_named_but_never_shown(call, started, monkeypatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", SECRET)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    called = call("run", "--no-wait", "--", "serve")
    assert "GITHUB_TOKEN" in called.err
    assert SECRET not in called.err + called.out
    assert "GITHUB_TOKEN" not in spec(started).env
    assert spec(started).env["HF_TOKEN"] == SECRET
    called = call("run", "--no-wait", "--env", "GITHUB_TOKEN", "--", "serve")
    assert spec(started).env["GITHUB_TOKEN"] == SECRET
    assert SECRET not in called.err + called.out


def test_an_engine_that_is_not_ready_in_time(call, answers, tmp_path) -> None:
    answers(
        run=lambda home, spec: sandbox(spec.name),
        wait_ready=HotstartError(DEADLINE, "gave up"),
        log_path=tmp_path / "log",
    )
    called = call("run", "--name", "chat", "--wait-timeout", "7", "--", "serve")
    assert called.code == 4
    last = called.err.splitlines()[-1]
    assert last.startswith("hotstart: deadline: the engine in chat was not ready after 7 s; the sandbox runs on")
    assert "hotstart logs chat" in last
    assert "--engine none" in last


def test_a_worker_that_dies_while_it_is_waited_for(call, answers, tmp_path) -> None:
    answers(
        run=lambda home, spec: sandbox(spec.name),
        wait_ready=HotstartError(SANDBOX_DEAD, "chat has ended"),
        log_path=tmp_path / "log",
    )
    called = call("run", "--name", "chat", "--", "serve")
    assert called.code == 23
    assert called.err.splitlines()[-1] == "hotstart: sandbox-dead: chat has ended; hotstart logs shows why"


def test_interrupting_the_wait_leaves_the_sandbox_and_says_so(call, answers, tmp_path) -> None:
    answers(run=lambda home, spec: sandbox(spec.name), wait_ready=KeyboardInterrupt(), log_path=tmp_path / "log")
    called = call("run", "--name", "chat", "-o", "json", "--", "serve")
    assert called.code == 130
    assert "the sandbox chat starts on; hotstart logs -f chat, or hotstart stop chat" in called.err
    assert called.json()["error"]["reason"] == "interrupted"


def test_the_last_line_of_a_log(tmp_path) -> None:
    from hotstart.snapshot_agent.cli.run import _last_line

    log = tmp_path / "log"
    assert _last_line(log) == ""
    log.write_bytes(b"x" * 10000 + b"\n\xff loading 10%\r loading 20%\n\n")
    assert _last_line(log) == "loading 20%"
