"""The command line as a user types it, when something is wrong: one line, the right exit code, no traceback."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotstart.linux.syscalls import CLONE_NEWUSER, unshare
from tests.integration.cli_program import PROGRAM, Done, Program


def become_nobody() -> None:
    """Uid 65534 without any right over the machine; files of this checkout stay readable, wherever it lies.

    A user namespace without a map does that.  setuid would do it too, but not where only root can read the interpreter.
    """
    unshare(CLONE_NEWUSER)


EVERY_VERB = [
    ["run", "--", "true"],
    ["ps"],
    ["logs", "x"],
    ["stop", "x"],
    ["snapshot", "create", "x"],
    ["snapshot", "list"],
    ["snapshot", "inspect", "x"],
    ["snapshot", "verify", "x"],
    ["snapshot", "rm", "x"],
    ["restore", "x"],
    ["preflight"],
    ["doctor"],
]


@pytest.fixture
def hotstart(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path / "home")
    yield program
    if os.geteuid() == 0:
        program.stop_all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pss"], ["usage: no such command 'pss' (did you mean 'ps'?); see hotstart --help"]),
        (["snapshot", "remove", "x"], ["no such command 'remove' (did you mean 'rm'?); see hotstart snapshot --help"]),
        (["restore", "x", "--cuont", "3"], ["no such option '--cuont' (did you mean '--count'?)"]),
        (["restore", "x", "--count", "many"], ["'many' is not a whole number from 1 to 1000"]),
        (["restore"], ["missing argument 'SNAPSHOT'"]),
        (["run"], ["missing argument 'COMMAND...'"]),
        (["logs", "x", "y"], ["unexpected extra argument (y)"]),
        (["ps", "--output", "xml"], ["'xml' is not one of 'table', 'json'"]),
        (["ps", "--output"], ["option '--output' requires an argument"]),
    ],
)
def test_wrong_words(hotstart: Program, arguments: list[str], words: list[str]) -> None:
    done = hotstart(*arguments)
    done.failed(2, *words)
    assert done.out == ""


def test_wrong_words_as_json(hotstart: Program) -> None:
    done = hotstart("-o", "json", "restore", "x", "--cuont", "3")
    done.failed(2)
    assert done.json()["error"]["reason"] == "usage"


@pytest.mark.root
@pytest.mark.parametrize("arguments", EVERY_VERB, ids=" ".join)
def test_without_root(hotstart: Program, arguments: list[str]) -> None:
    done = hotstart(*arguments, preexec_fn=become_nobody)
    done.failed(3, "not-root", "this is uid 65534", "run it as root")


@pytest.mark.root
@pytest.mark.parametrize("arguments", [["--help"], ["restore", "--help"], ["--version"], ["completion", "bash"]])
def test_what_works_without_root(hotstart: Program, arguments: list[str]) -> None:
    done = hotstart(*arguments, preexec_fn=become_nobody)
    assert (done.code, done.err) == (0, "")
    assert done.out


@pytest.mark.root
@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["logs", "zebra"], 20, "no-such-sandbox"),
        (["stop", "zebra"], 20, "no-such-sandbox"),
        (["snapshot", "create", "zebra"], 20, "no-such-sandbox"),
        (["preflight", "--sandbox", "zebra"], 20, "no-such-sandbox"),
        (["snapshot", "inspect", "zebra"], 50, "no-such-snapshot"),
        (["snapshot", "verify", "zebra"], 50, "no-such-snapshot"),
        (["snapshot", "rm", "zebra"], 50, "no-such-snapshot"),
        (["restore", "zebra"], 50, "no-such-snapshot"),
    ],
)
@pytest.mark.parametrize("name", ["zebra", "../../etc", "UPPER", ".hidden", "a" * 64, ""])
def test_names_of_what_does_not_exist(
    hotstart: Program, arguments: list[str], code: int, reason: str, name: str
) -> None:
    done = hotstart(*(name if word == "zebra" else word for word in arguments))
    if name == "zebra":
        done.failed(code, reason, "zebra")
    else:
        assert done.code in (2, code), done
        done.failed(done.code)
    assert done.out == ""


@pytest.mark.root
@pytest.mark.parametrize("name", ["Bad", "a b", "../x", "-x", "x" * 64, "", "."])
def test_names_that_cannot_be(hotstart: Program, name: str) -> None:
    hotstart("run", f"--name={name}", "--engine", "none", "--", "sleep", "100").failed(2)
    assert hotstart("ps", "-q").out == ""


@pytest.mark.root
def test_a_command_that_does_not_exist(hotstart: Program) -> None:
    done = hotstart("run", "--name", "x", "--", "no-such-command-anywhere")
    assert done.code in (23, 24), done
    assert "no-such-command-anywhere" in done.err
    assert "Traceback" not in done.err


@pytest.mark.root
@pytest.mark.parametrize(("arguments", "code"), [(["doctor"], 10), (["preflight"], 10)])
def test_without_criu(hotstart: Program, tmp_path: Path, arguments: list[str], code: int) -> None:
    hotstart.environment["HOTSTART_CRIU"] = str(tmp_path / "nothing")
    done = hotstart(*arguments)
    assert done.code == code, done
    assert str(tmp_path / "nothing") in done.out
    assert "./dev setup" in done.out
    assert done.err == ""


@pytest.mark.root
def test_a_capture_without_criu_leaves_the_sandbox_alone(hotstart: Program, tmp_path: Path) -> None:
    assert hotstart("run", "--name", "x", "--engine", "none", "--", "sleep", "100").code == 0
    hotstart.environment["HOTSTART_CRIU"] = str(tmp_path / "nothing")
    hotstart("snapshot", "create", "x").failed(10, "criu-missing", str(tmp_path / "nothing"))
    assert hotstart("ps", "-o", "json").json()[0]["state"] == "running"
    assert hotstart("snapshot", "list", "-q").out == ""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for almost nothing."""
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "hotstart-test", str(home)], check=True)
    try:
        yield home
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


@pytest.mark.root
def test_a_full_disk(small_disk: Path) -> None:
    ballast = os.open(small_disk / "ballast", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):  # ENOSPC: that is what is wanted
        while True:
            os.write(ballast, b"x" * 512)
    os.close(ballast)
    program = Program(small_disk)
    try:
        program("run", "--engine", "none", "--", "sleep", "100").failed(16, "disk-full", "No space left on device")
        assert program("ps", "-q").out == ""
    finally:
        program.stop_all()


@pytest.mark.root
def test_a_home_that_is_a_file(hotstart: Program, tmp_path: Path) -> None:
    hotstart.home = tmp_path / "file"
    hotstart.home.write_text("")
    done = hotstart("run", "--engine", "none", "--", "sleep", "100")
    assert done.code != 0
    done.failed(done.code, str(hotstart.home))


def reading(stdout: int, *arguments: str) -> Done:
    """A call whose stdout is this descriptor."""
    done = subprocess.run(
        [*PROGRAM, *arguments], stdout=stdout, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60, check=False
    )
    return Done(done.returncode, "", done.stderr.decode())


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["run", "--help"], ["completion", "zsh"]])
def test_nobody_reads_stdout(arguments: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = reading(write_end, *arguments)
    os.close(write_end)
    assert (done.code, done.err) == (141, "")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["run", "--help"], ["completion", "zsh"]])
def test_stdout_is_a_full_disk(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        reading(full.fileno(), *arguments).failed(16, "disk-full", "No space left on device")


def test_no_stdout_at_all() -> None:
    code = "import os, sys; os.close(1); os.execv(sys.executable, sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *PROGRAM, "--version"], stderr=subprocess.PIPE, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.root
def test_a_locale_that_cannot_say_everything(hotstart: Program) -> None:
    hotstart.environment |= {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = hotstart("doctor")
    assert done.out.isascii()
    assert "ok  kernel" in done.out
    done = hotstart("logs", "größe")
    done.failed(done.code, "gr\\xf6\\xdfe")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["restore", "--help"], ["completion", "fish"]])
def test_what_should_be_quick_imports_little(arguments: list[str]) -> None:
    code = (
        "import sys; from hotstart.snapshot_agent.cli.main import main; main(sys.argv[1:]); "
        "heavy = ('rich', 'msgspec', 'numpy', 'google.protobuf', 'hotstart.snapshot_agent.api'); "
        "sys.stderr.write(' '.join(name for name in heavy if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, timeout=60, check=True)
    assert done.stderr == b""
