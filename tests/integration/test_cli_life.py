"""The command line on the real engine: a sandbox's life, a snapshot's life, and what interrupts them."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hotstart.names import CRIU_ENV
from tests.integration.cli_program import TIMEOUT_S, Program, Terminal

SECRET = "hunter2-never-printed"
PORT = 8000
WORKER = [sys.executable, "-m", "hotstart.hooks.engines.plain", "--port", str(PORT)]

pytestmark = pytest.mark.root
needs_criu = [
    pytest.mark.criu,
    pytest.mark.skipif(not os.environ.get(CRIU_ENV), reason=f"{CRIU_ENV} is not set; ./dev test sets it"),
]


@pytest.fixture
def hotstart(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path / "home", {"GITHUB_TOKEN": SECRET, "HF_TOKEN": SECRET})
    yield program
    program.stop_all()


def ask(address: str, prompt: str = "the answer is") -> Any:
    """The worker's tokens for a prompt, through HTTP."""
    body = json.dumps({"prompt": prompt, "max_tokens": 8, "logprobs": 1}).encode()
    request = urllib.request.Request(
        f"http://{address}:{PORT}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        choice = json.load(answer)["choices"][0]
    return choice["text"], choice.get("logprobs")


def sandboxes(hotstart: Program) -> dict[str, dict[str, Any]]:
    return {info["name"]: info for info in hotstart("ps", "-o", "json").json()}


def test_a_sandboxs_life(hotstart: Program) -> None:
    done = hotstart("run", "--name", "one", "--engine", "none", "--", "sh", "-c", "echo hello; exec sleep 100")
    assert done.code == 0
    assert done.out.splitlines()[1].split()[0] == "one"
    info = sandboxes(hotstart)["one"]
    assert info["state"] == "running"
    assert info["command"] == ["sh", "-c", "echo hello; exec sleep 100"]
    assert info["address"] in done.out
    assert hotstart("ps", "-q").out == "one\n"
    assert hotstart("logs", "one").out == "hello\n"
    hotstart("logs", "oen").failed(20, "no-such-sandbox", "did you mean one?")
    assert hotstart("stop", "one").out == "one\n"
    assert hotstart("ps", "-q").out == ""
    hotstart("stop", "one").failed(20, "no-such-sandbox")


def test_a_name_that_is_taken(hotstart: Program) -> None:
    assert hotstart("run", "--name", "one", "--engine", "none", "--", "sleep", "100").code == 0
    done = hotstart("run", "--name", "one", "--engine", "none", "--", "sleep", "100")
    assert done.code == 21
    assert done.err.splitlines()[-1].startswith("hotstart: sandbox-exists: ")
    assert sandboxes(hotstart)["one"]["state"] == "running"


def test_a_worker_that_ends(hotstart: Program) -> None:
    hotstart("run", "--name", "short", "--engine", "none", "--", "sh", "-c", "exit 7")
    deadline = time.monotonic() + 10
    while (info := sandboxes(hotstart)["short"])["state"] != "exited":
        assert time.monotonic() < deadline, info
    assert info["exit_status"] == 7
    assert "exited (7)" in hotstart("ps").out


def test_the_workers_environment(hotstart: Program, tmp_path: Path) -> None:
    hotstart.environment |= {"SSH_CONNECTION": "1.2.3.4", "MY_SETTING": "a b", "LD_PRELOAD": ""}
    out = tmp_path / "home"
    done = hotstart(
        *("run", "--name", "env", "--engine", "none", "-e", "EXTRA=1", "--"),
        *("sh", "-c", "env | cut -d= -f1 | sort; echo setting=$MY_SETTING; pwd"),
        cwd="/usr",
    )
    assert done.code == 0
    assert "GITHUB_TOKEN" in done.err
    while sandboxes(hotstart)["env"]["state"] != "exited":
        time.sleep(0.05)
    lines = hotstart("logs", "env").out.splitlines()
    assert {"PATH", "HF_TOKEN", "MY_SETTING", "EXTRA", "setting=a b", "/usr"} <= set(lines)
    assert not {"GITHUB_TOKEN", "SSH_CONNECTION", "TERM", "HOTSTART_HOME"} & set(lines)
    for call in (["ps"], ["ps", "-o", "json"]):
        printed = hotstart(*call)
        assert SECRET not in printed.out + printed.err
    assert SECRET not in done.out + done.err
    kept = [path for path in out.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert kept
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in kept} == {0}
    assert stat.S_IMODE(out.stat().st_mode) & 0o077 == 0


def test_another_user_and_a_volume(hotstart: Program, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("content\n")
    script = "id -u; id -g; cat /data/file; touch /data/x 2>/dev/null || echo read-only"
    command = ("run", "--name", "u", "--engine", "none", "--user", "65534", "--cwd", "/")
    done = hotstart(*command, "-v", f"{tmp_path}/data:/data", "--", "sh", "-c", script)
    assert done.code == 0, done
    while sandboxes(hotstart)["u"]["state"] != "exited":
        time.sleep(0.05)
    assert hotstart("logs", "u").out == "65534\n65534\ncontent\nread-only\n"


@pytest.fixture
def worker(hotstart: Program) -> str:
    """A plain worker that serves; its address."""
    done = hotstart("run", "--name", "src", "-o", "json", "--", *WORKER, "--ballast-mb", "64")
    assert done.code == 0, done
    address = done.json()["address"]
    assert isinstance(address, str)
    return address


@pytest.mark.usefixtures("worker")
class TestSnapshot:
    """What is done with a snapshot, through the program alone."""

    pytestmark = needs_criu

    def test_its_life(self, hotstart: Program, worker: str, tmp_path: Path) -> None:
        expected = ask(worker)
        done = hotstart("preflight", "--sandbox", "src")
        assert (done.code, done.out.splitlines()[-1]) == (0, "nothing here stands in the way")
        made = hotstart("snapshot", "create", "src", "-o", "json")
        assert made.code == 0, made
        assert made.json()["name"] == "src"
        assert made.json()["kv_bytes"] == 0
        assert ask(worker) == expected
        again = hotstart("snapshot", "create", "src", "--stop")
        assert again.code == 0, again
        assert hotstart("ps", "-q").out == ""
        assert sorted(hotstart("snapshot", "list", "-q").out.split()) == ["src", "src-2"]
        assert hotstart("snapshot", "rm", "src-2").code == 0

        picture = tmp_path / "restore.svg"
        done = hotstart("restore", "src", "--name", "web", "-n", "2", "-o", "json", "--timeline", str(picture))
        assert done.code == 0, done
        copies = done.json()["copies"]
        assert [copy["name"] for copy in copies] == ["web-1", "web-2"]
        assert {copy["outcome"] for copy in copies} == {"restored"}
        assert len({copy["address"] for copy in copies}) == 2
        for copy in copies:
            assert ask(copy["address"]) == expected
            assert 0 < copy["private_bytes"] < 64 << 20
            spans = copy["phases"]["spans"]
            assert spans
            assert copy["phases"]["total_s"] >= max(span["end_s"] for span in spans) - 1e-3
        assert "web-2" in "".join(ElementTree.parse(picture).getroot().itertext())
        assert {info["restored_from"] for info in sandboxes(hotstart).values()} == {"src"}

        shown = hotstart("snapshot", "inspect", "src")
        assert shown.code == 0
        assert "Phases of the capture" in shown.out
        as_json = hotstart("snapshot", "inspect", "src", "-o", "json")
        assert "HF_TOKEN" in as_json.json()["manifest"]["sandbox"]["env_names"]
        assert SECRET not in shown.out + as_json.out
        assert hotstart("snapshot", "verify", "--all").code == 0
        assert hotstart("preflight", "src").code == 0
        hotstart("preflight", "rsc").failed(50, "no-such-snapshot", "did you mean src?")

    def test_a_long_capture_shows_a_bar_and_takes_it_away(self, hotstart: Program) -> None:
        hotstart.environment["TERM"] = "xterm-256color"
        code, text = Terminal(hotstart, "snapshot", "create", "src").finish()
        assert code == 0
        assert "━" in text
        assert " %" in text
        assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
        bar, table = text.split("\x1b[?25h")
        assert "NAME" not in bar
        assert table.replace("\r", "").splitlines()[-1].split()[0] == "src"
        assert not (hotstart.home / "scratch").exists() or not list((hotstart.home / "scratch").iterdir())

    def test_copied_by_choice(self, hotstart: Program, worker: str) -> None:
        expected = ask(worker)
        assert hotstart("snapshot", "create", "src").code == 0
        done = hotstart("restore", "src", "--copy", "--name", "web")
        assert done.code == 0, done
        assert done.out.splitlines()[1].split()[-1] == "copied"
        assert "copied memory: copied-by-choice" in done.err
        assert ask(sandboxes(hotstart)["web"]["address"]) == expected

    def test_damage_is_found_named_and_not_restored(self, hotstart: Program) -> None:
        assert hotstart("snapshot", "create", "src").code == 0
        memory = hotstart.home / "snapshots/src/memory"
        with memory.open("r+b") as file:
            while not (block := file.read(4096)).strip(b"\0"):
                pass
            file.seek(-len(block), os.SEEK_CUR)
            file.write(bytes(255 - byte for byte in block))
        done = hotstart("snapshot", "verify", "src", "-o", "json")
        assert done.code == 54
        assert [damage["path"] for damage in done.json()["snapshots"][0]["damaged"]] == ["memory"]
        assert "snapshot-damaged" in done.err.splitlines()[-1]
        done = hotstart("restore", "src", "--no-cold-start")
        assert done.code == 54
        assert hotstart("ps", "-q").out == "src\n"
        (hotstart.home / "snapshots/src/manifest.json").write_text("{")
        assert hotstart("snapshot", "list").out.splitlines()[1].split()[:2] == ["src", "damaged"]
        hotstart("snapshot", "inspect", "src").failed(53, "manifest-invalid")
        assert hotstart("snapshot", "verify", "--all").code == 54
        assert hotstart("snapshot", "rm", "src").code == 0
        assert hotstart("snapshot", "list", "-q").out == ""

    def test_a_restore_that_cannot_work_cold_starts_and_says_why(self, hotstart: Program, tmp_path: Path) -> None:
        assert hotstart("snapshot", "create", "src").code == 0
        hotstart.environment["HOTSTART_CRIU"] = str(tmp_path / "nothing")
        done = hotstart("restore", "src", "--name", "web")
        assert done.code == 66
        assert "web: criu-missing: " in done.err
        assert done.out.splitlines()[1].split()[:2] == ["web", "cold"]
        assert sandboxes(hotstart)["web"]["restored_from"] == "src"
        done = hotstart("restore", "src", "--name", "other", "--no-cold-start")
        assert done.code == 10
        assert "other" not in sandboxes(hotstart)

    @pytest.mark.parametrize("copies", [1, 3])
    @pytest.mark.parametrize("delay_s", [0.04, 0.08, 0.12])
    def test_interrupted_restores_leave_nothing(self, hotstart: Program, copies: int, delay_s: float) -> None:
        assert hotstart("snapshot", "create", "src", "--stop").code == 0
        process = hotstart.start("restore", "src", "-n", str(copies))
        assert process.stderr is not None
        process.stderr.readline()
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
        made = hotstart("ps", "-q").out.split()
        if out:  # it was done before
            assert [line.split()[0] for line in out.splitlines()[1:]] == sorted(made)
            assert len(made) == copies
        else:
            assert process.returncode == 130, err
            assert err.startswith(
                "hotstart: interrupted: the restore was stopped by SIGINT and undone, no copy is left"
            )
            assert err.count("\n") == 1
            assert made == []
        assert hotstart("restore", "src").code == 0

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize("phase", ["quiesce", "dump", "convert"])
    def test_interrupted_captures_leave_nothing(
        self, hotstart: Program, worker: str, number: signal.Signals, phase: str
    ) -> None:
        expected = ask(worker)
        process = hotstart.start("snapshot", "create", "src")
        assert process.stderr is not None
        for line in process.stderr:
            if line == f"hotstart: {phase}\n":
                process.send_signal(number)
                break
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 130, err
        assert re.fullmatch(r"(hotstart: [a-z ]+\n)*hotstart: interrupted: .*\n", err)
        assert ask(worker) == expected
        assert hotstart("snapshot", "list", "-q").out == ""
        assert list((hotstart.home / "snapshots").glob("*")) == []
        assert hotstart("snapshot", "create", "src").code == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a sandbox, but not for what its worker holds."""
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m,mode=700", "hotstart-test", str(home)], check=True)
    try:
        yield home
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


@needs_criu[0]
@needs_criu[1]
def test_a_full_disk_is_seen_before_the_worker_is_touched(small_disk: Path) -> None:
    program = Program(small_disk)
    try:
        started = program("run", "--name", "src", "-o", "json", "--", *WORKER, "--ballast-mb", "64")
        assert started.code == 0, started
        address = started.json()["address"]
        expected = ask(address)
        done = program("snapshot", "create", "src")
        assert done.code == 16, done
        assert done.err.splitlines()[-1].startswith("hotstart: disk-full: ")
        assert "quiesce" not in done.err
        assert program("snapshot", "list", "-q").out == ""
        assert ask(address) == expected
    finally:
        program.stop_all()


def test_a_stopped_sandbox_answers_nobody(hotstart: Program, worker: str) -> None:
    ask(worker)
    assert hotstart("stop", "src", "--grace", "1").code == 0
    with pytest.raises(urllib.error.URLError):
        ask(worker)
