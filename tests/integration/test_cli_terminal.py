"""The command line at a terminal: widths, colors, bars, Ctrl-C, and completion in a real shell."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_program import PROGRAM, TIMEOUT_S, Program, Terminal, at_terminal

pytestmark = pytest.mark.root

PLAIN = [sys.executable, "-m", "hotstart.hooks.engines.plain", "--port", "8000"]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def hotstart(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path / "home", {"TERM": "xterm-256color"})
    yield program
    program.stop_all()


@pytest.fixture
def sandbox(hotstart: Program) -> str:
    done = hotstart(
        "run", "--name", "long", "--engine", "none", "--", "sh", "-c", "sleep 100; :", "--a-long-option" * 20
    )
    assert done.code == 0, done
    return "long"


@pytest.mark.parametrize("columns", [80, 120, 400])
def test_tables_fit_the_terminal(hotstart: Program, sandbox: str, columns: int) -> None:
    code, lines = at_terminal(hotstart, "--no-color", "ps", columns=columns)
    assert code == 0
    assert max(len(line) for line in lines) <= columns
    assert lines[1].split()[0] == sandbox
    assert ("…" in lines[1]) == (columns < 400)


def test_colors_are_for_terminals_that_want_them(hotstart: Program, sandbox: str) -> None:
    assert "\x1b[" in "\n".join(at_terminal(hotstart, "ps")[1])
    assert "\x1b" not in "\n".join(at_terminal(hotstart, "--no-color", "ps")[1])
    assert "\x1b" not in hotstart("ps").out
    hotstart.environment["NO_COLOR"] = "1"
    assert "\x1b" not in "\n".join(at_terminal(hotstart, "ps")[1])


def test_a_dumb_terminal_is_no_terminal(hotstart: Program, sandbox: str) -> None:
    hotstart.environment["TERM"] = "dumb"
    age = re.compile(r"\d+s")
    assert age.sub("", "\n".join(at_terminal(hotstart, "ps", columns=60)[1])) == age.sub(
        "", hotstart("ps").out.rstrip()
    )


def test_json_is_whole_at_a_terminal_too(hotstart: Program, sandbox: str) -> None:
    import json

    _, lines = at_terminal(hotstart, "ps", "-o", "json", columns=40)
    assert json.loads("\n".join(lines))[0]["command"][3] == "--a-long-option" * 20


def test_ctrl_c_while_the_engine_starts(hotstart: Program) -> None:
    talking = 'import time; print("loading weights", flush=True); time.sleep(100)'
    terminal = Terminal(hotstart, "run", "--name", "slow", "--", sys.executable, "-c", talking)
    terminal.read_until("loading weights")
    terminal.press("\x03")
    code, text = terminal.finish()
    assert code == 130
    last = ESCAPE.sub("", text).splitlines()[-1]
    assert last == (
        "hotstart: interrupted: stopped waiting; the sandbox slow starts on; "
        "hotstart logs -f slow, or hotstart stop slow"
    )
    assert text.rstrip().count("\x1b[?25h") >= text.count("\x1b[?25l")  # the cursor is back
    assert hotstart("ps", "-q").out == "slow\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_while_the_engine_starts(hotstart: Program, number: signal.Signals) -> None:
    process = hotstart.start("run", "--name", "slow", "-o", "json", "--", "sleep", "100")
    assert process.stderr is not None
    assert process.stderr.readline() == "hotstart: waiting for the engine in slow\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert err.startswith("hotstart: interrupted: stopped waiting; the sandbox slow starts on")
    assert err.count("\n") == 1
    assert '"reason": "interrupted"' in out


def test_a_signal_that_the_caller_ignores_stays_ignored(hotstart: Program) -> None:
    process = hotstart.start(
        *("run", "--name", "slow", "--wait-timeout", "2", "--", "sleep", "100"),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 4
    assert err.startswith("hotstart: deadline: the engine in slow was not ready after 2 s")


def test_following_a_log_ends_with_the_sandbox(hotstart: Program) -> None:
    script = "for i in 1 2 3; do echo line $i; sleep 0.3; done"
    assert hotstart("run", "--name", "short", "--engine", "none", "--", "sh", "-c", script).code == 0
    done = hotstart("logs", "-f", "short")
    assert (done.code, done.out, done.err) == (0, "line 1\nline 2\nline 3\n", "")


def test_ctrl_c_ends_following_quietly(hotstart: Program) -> None:
    script = "echo here; sleep 100"
    assert hotstart("run", "--name", "talks", "--engine", "none", "--", "sh", "-c", script).code == 0
    terminal = Terminal(hotstart, "logs", "-f", "talks")
    terminal.read_until("here")
    terminal.press("\x03")
    code, text = terminal.finish()
    assert code == 130
    assert text.replace("\r", "") == "here\n^C\n"
    assert hotstart("ps", "-q").out == "talks\n"


def test_nobody_reads_a_log_any_more(hotstart: Program) -> None:
    script = "while echo y; do :; done"
    assert hotstart("run", "--name", "talks", "--engine", "none", "--", "sh", "-c", script).code == 0
    process = hotstart.start("logs", "-f", "talks")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "y\n"
    hotstart("stop", "talks", "--grace", "0")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(TIMEOUT_S) == 141
    process.stderr.close()


COMPLETE = """
eval "$({program} completion bash)"
COMP_WORDS=({words}) COMP_CWORD={last}
_hotstart_completion hotstart
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["hotstart", "sna"], ["snapshot"]),
        (["hotstart", "logs", "--t"], ["--tail"]),
        (["hotstart", "logs", "lo"], ["long"]),
        (["hotstart", "stop", ""], ["long"]),
    ],
)
def test_bash_completes(hotstart: Program, sandbox: str, tmp_path: Path, words: list[str], offered: list[str]) -> None:
    program = tmp_path / "hotstart"
    program.write_text(f'#!/bin/sh\nexec {" ".join(PROGRAM)} "$@"\n')
    program.chmod(0o755)
    quoted = " ".join(f"'{word}'" for word in words)
    script = COMPLETE.format(program="hotstart", words=quoted, last=len(words) - 1)
    environment = {**hotstart.env(), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert (done.stdout.split(), done.stderr) == (offered, "")
