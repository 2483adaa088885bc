"""``hotstart ps``, ``stop`` and ``logs``."""

import io
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstart.errors import HotstartError
from hotstart.reasons import NO_SUCH_SANDBOX, SANDBOX_DEAD
from hotstart.snapshot_agent.cli import logs
from tests.unit.cli.samples import sandbox

INFOS = [
    sandbox("web", created="2026-01-03T00:00:00Z", state="cold", reason="criu-restore-failed", private_bytes=0),
    sandbox(),
    sandbox("old", created="2026-01-01T00:00:00Z", state="exited", exit_status=1, address="", restored_from="chat"),
]


def test_ps_lists_the_oldest_first(call, answers) -> None:
    calls = answers(sandboxes=INFOS)
    lines = call("ps").out.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "ADDRESS", "ENGINE", "AGE", "PRIVATE", "RESTORED-FROM", "COMMAND"]
    assert [line.split()[0] for line in lines[1:]] == ["old", "chat", "web"]
    assert "exited (1)" in lines[1]
    assert "50.0 MiB  -              python -m vllm.entrypoints.openai.api_server --model /models/chat" in lines[2]
    assert "cold (criu-restore-failed)" in lines[3]
    assert calls["sandboxes"][0][1] == {"measure": True}


def test_ps_names_only_does_not_measure(call, answers) -> None:
    calls = answers(sandboxes=INFOS)
    assert call("ps", "-q").out == "old\nchat\nweb\n"
    assert call("ps", "-q", "-o", "json").json() == ["old", "chat", "web"]
    assert calls["sandboxes"][0][1] == {"measure": False}


def test_ps_as_json_is_whole(call, answers) -> None:
    answers(sandboxes=INFOS)
    listed = call("ps", "-o", "json").json()
    assert listed[1] == {
        "name": "chat",
        "state": "ready",
        "address": "10.231.0.2",
        "init_pid": 4711,
        "created": "2026-01-02T03:04:05Z",
        "command": ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/chat"],
        "engine": "vllm",
        "restored_from": "",
        "reason": "",
        "exit_status": None,
        "private_bytes": 52428800,
    }


def test_ps_of_nothing(call, answers) -> None:
    answers(sandboxes=[])
    called = call("ps")
    assert called.out.startswith("NAME ")
    assert called.err == "no sandboxes; hotstart run -- COMMAND starts one\n"
    assert call("ps", "-o", "json").json() == []


def test_stop_stops_several_at_the_same_time(call, answers) -> None:
    both = threading.Barrier(2, timeout=20)

    def stop(home, name, grace_s):
        both.wait()
        return sandbox(name)

    calls = answers(stop=stop)
    called = call("stop", "a", "b", "a", "--grace", "3")
    assert called.code == 0
    assert sorted(called.out.splitlines()) == ["a", "b"]
    assert all(kwargs == {"grace_s": 3.0} for _, kwargs in calls["stop"])


def test_stop_all(call, answers) -> None:
    answers(sandboxes=INFOS, stop=lambda home, name, grace_s: sandbox(name))
    assert [info["name"] for info in call("stop", "--all", "-o", "json").json()["stopped"]] == ["web", "chat", "old"]


def test_stop_all_of_nothing(call, answers) -> None:
    answers(sandboxes=[])
    called = call("stop", "--all")
    assert (called.code, called.out, called.err) == (0, "", "")


def test_stop_goes_on_after_a_failure_and_tells_all_failures(call, answers) -> None:
    def stop(home, name, grace_s):
        if name == "b":
            return sandbox(name)
        raise HotstartError(NO_SUCH_SANDBOX if name == "a" else SANDBOX_DEAD, f"trouble with {name}")

    answers(stop=stop, sandboxes=[])
    called = call("stop", "a", "b", "c")
    assert called.code == 20
    assert called.out == "b\n"
    assert [line.split(";")[0] for line in called.err.splitlines()] == [
        "hotstart: sandbox-dead: trouble with c",
        "hotstart: no-such-sandbox: trouble with a",
    ]
    called = call("stop", "a", "b", "c", "-o", "json")
    assert called.code == 20
    value = called.json()
    assert [info["name"] for info in value["stopped"]] == ["b"]
    assert [(error["name"], error["reason"]) for error in value["errors"]] == [
        ("a", "no-such-sandbox"),
        ("c", "sandbox-dead"),
    ]
    assert value["error"]["reason"] == "no-such-sandbox"


@pytest.fixture
def log(answers, tmp_path):
    path = tmp_path / "log"
    answers(log_path=path, sandboxes=[sandbox()])
    return path


def test_logs_are_printed_byte_for_byte(call, log, monkeypatch) -> None:
    log.write_bytes(b"one\n\xff\x1b[31mred\x1b[0m\nlast")
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert call("logs", "chat").code == 0
    assert stdout.buffer.getvalue() == log.read_bytes()


@pytest.mark.parametrize(("lines", "text"), [(0, ""), (1, "three\n"), (2, "two\nthree\n"), (9, "one\ntwo\nthree\n")])
def test_logs_tail(call, log, lines: int, text: str) -> None:
    log.write_text("one\ntwo\nthree\n")
    assert call("logs", "--tail", str(lines), "chat", "-o", "json").json() == {
        "name": "chat",
        "lines": text.splitlines(),
    }


@given(st.lists(st.integers(0, 200_000), max_size=5), st.booleans(), st.integers(0, 7))
def test_tail_finds_the_same_lines_as_reading_all(lengths: list[int], ended: bool, lines: int) -> None:
    text = b"\n".join(b"x" * length for length in lengths) + (b"\n" if ended else b"")
    file = io.BytesIO(text)
    offset = logs.tail_offset(file, lines)
    whole = text.splitlines(keepends=True)
    assert text[offset:] == b"".join(whole[len(whole) - min(lines, len(whole)) :])


def test_logs_follow_until_the_sandbox_ends(call, answers, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(logs, "_POLL_S", 0.01)
    monkeypatch.setattr(logs, "_ENDED_POLL_S", 0.05)
    path = tmp_path / "log"
    path.write_text("first\n")
    began = time.monotonic()

    def sandboxes(home):
        if time.monotonic() - began < 0.2:
            with path.open("a") as file:
                file.write("more\n")
            return [sandbox()]
        return [sandbox(state="exited", exit_status=0)]

    printed = []
    monkeypatch.setattr("hotstart.snapshot_agent.cli.output.write_bytes", printed.append)
    answers(log_path=path, sandboxes=sandboxes)
    assert call("logs", "-f", "chat").code == 0
    text = b"".join(printed).decode()
    assert text.startswith("first\nmore\n")
    assert text == path.read_text()


def test_logs_follow_a_log_that_was_cut_short(call, answers, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(logs, "_POLL_S", 0.01)
    monkeypatch.setattr(logs, "_ENDED_POLL_S", 0.05)
    path = tmp_path / "log"
    path.write_text("a long first line\n")
    looked = []

    def sandboxes(home):
        looked.append(home)
        if len(looked) == 1:
            path.write_text("new\n")
        return [sandbox()] if len(looked) < 4 else []

    printed = []
    monkeypatch.setattr("hotstart.snapshot_agent.cli.output.write_bytes", printed.append)
    answers(log_path=path, sandboxes=sandboxes)
    assert call("logs", "-f", "chat").code == 0
    assert b"".join(printed) == b"a long first line\nnew\n"
