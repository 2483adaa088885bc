"""Whatever happens: one line on stderr, the reason's exit code, the same as JSON; never a traceback unasked."""

import errno
import json

import pytest

from hotstart.errors import HotstartError
from hotstart.reasons import NO_SUCH_SANDBOX, REGISTRY, Reason
from hotstart.snapshot_agent import api
from tests.unit.cli.samples import sandbox, snapshot


@pytest.mark.parametrize("reason", REGISTRY.values(), ids=list(REGISTRY))
def test_every_reason_has_its_line_and_exit_code(call, answers, reason: Reason) -> None:
    answers(sandboxes=HotstartError(reason, "what was found", tried="looking"))
    called = call("ps")
    assert called.code == reason.exit_code
    assert called.out == ""
    line = called.error_line()
    assert line == f"hotstart: {reason.code}: what was found, while looking; {reason.remedy}"


def test_the_same_as_json(call, answers) -> None:
    error = HotstartError(NO_SUCH_SANDBOX, "there is no sandbox zebra")
    answers(sandboxes=error)
    called = call("ps", "--output", "json")
    assert called.code == 20
    assert called.json() == {"error": error.to_json()}
    assert called.error_line().startswith("hotstart: no-such-sandbox:")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/x/y"),
            16,
            "hotstart: disk-full: /x/y: No space left on device;",
        ),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 16, "hotstart: disk-full: Disk quota exceeded;"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 70, "hotstart: internal: /x: Permission denied;"),
        (ValueError("two\nlines \x1b[31m"), 70, "hotstart: internal: ValueError: two lines \\x1b[31m;"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 70, "hotstart: internal: Broken pipe;"),
        (RecursionError("deep"), 70, "hotstart: internal: RecursionError: deep;"),
        (KeyboardInterrupt(), 130, "hotstart: interrupted: stopped by the user before it was done;"),
        (KeyboardInterrupt("SIGTERM"), 130, "hotstart: interrupted: stopped by SIGTERM before it was done;"),
    ],
)
def test_other_exceptions(call, answers, error: BaseException, code: int, line: str) -> None:
    answers(sandboxes=error)
    called = call("ps")
    assert called.code == code
    assert called.error_line().startswith(line)


def test_a_traceback_only_when_asked_for(call, answers) -> None:
    answers(sandboxes=ValueError("odd"))
    called = call("ps", "--debug")
    assert called.code == 70
    assert "Traceback" in called.err
    assert called.err.splitlines()[-1].startswith("hotstart: internal: ValueError: odd")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["pss"], "no such command 'pss' (did you mean 'ps'?); see hotstart --help"),
        (["ls"], "no such command 'ls' (did you mean 'ps'?); see hotstart --help"),
        (["capture"], "no such command 'capture' (did you mean 'snapshot create'?); see hotstart --help"),
        (["xyzzy"], "no such command 'xyzzy'; see hotstart --help"),
        (["snapshot", "crate"], "no such command 'crate' (did you mean 'create'?); see hotstart snapshot --help"),
        (["snapshot", "delete"], "no such command 'delete' (did you mean 'rm'?); see hotstart snapshot --help"),
        (["ps", "--quite"], "no such option '--quite' (did you mean '--quiet'?); see hotstart ps --help"),
        (["ps", "--xyzzy"], "no such option '--xyzzy'; see hotstart ps --help"),
        (["--xyzzy"], "no such option '--xyzzy'; see hotstart --help"),
        (["logs"], "missing argument 'NAME'; see hotstart logs --help"),
        (["run"], "missing argument 'COMMAND...'; see hotstart run --help"),
        (["run", "--"], "missing argument 'COMMAND...'; see hotstart run --help"),
        (["stop"], "give names, or --all; see hotstart stop --help"),
        (["stop", "--all", "chat"], "give names, or --all; see hotstart stop --help"),
        (["snapshot", "verify"], "give names, or --all; see hotstart snapshot verify --help"),
        (["snapshot", "rm"], "missing argument 'NAME...'; see hotstart snapshot rm --help"),
        (["logs", "a", "b"], "got unexpected extra argument (b); see hotstart logs --help"),
        (["logs", "-f", "-o", "json", "a"], "--follow has no end that JSON could have"),
        (["logs", "--tail", "-1", "a"], "invalid value for '--tail' / '-n': '-1' is not a whole number from 0"),
        (["restore", "a", "--count", "0"], "invalid value for '--count' / '-n': '0' is not a whole number from 1"),
        (["restore", "a", "--count", "two"], "invalid value for '--count' / '-n': 'two' is not a whole number"),
        (["restore", "a", "--timeout", "nan"], "invalid value for '--timeout': 'nan' is not a number of seconds"),
        (["restore", "a", "--timeout", "-1"], "invalid value for '--timeout': '-1' is not a number of seconds"),
        (["restore", "a", "--timeline", "x.jpg"], "invalid value for '--timeline': 'x.jpg' ends neither in .svg nor"),
        (
            ["restore", "a", "--timeline", "/nowhere/x.svg"],
            "invalid value for '--timeline': /nowhere is not a directory",
        ),
        (["completion", "tcsh"], "invalid value for '{bash|zsh|fish}': 'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        (["ps", "--output", "yaml"], "invalid value for '--output' / '-o': 'yaml' is not one of 'table', 'json'"),
    ],
)
def test_a_wrong_call_is_one_line_with_a_suggestion(call, arguments: list[str], line: str) -> None:
    called = call(*arguments)
    assert called.code == 2
    assert called.error_line().startswith(f"hotstart: usage: {line}")
    if "json" not in arguments:
        assert called.out == ""


def test_a_wrong_call_as_json(call) -> None:
    called = call("ps", "--output=json", "--xyzzy")
    assert called.code == 2
    assert called.json()["error"]["reason"] == "usage"


def test_what_belongs_to_the_command_is_not_ours(call, answers) -> None:
    answers(run=HotstartError(NO_SUCH_SANDBOX, "x"))
    called = call("run", "--", "serve", "--output", "json", "--debug")
    assert called.out == ""
    assert "Traceback" not in called.err


@pytest.mark.parametrize(
    ("arguments", "function", "meant"),
    [
        (["logs", "caht"], "log_path", "chat"),
        (["stop", "caht"], "stop", "chat"),
        (["snapshot", "create", "caht"], "create_snapshot", "chat"),
        (["preflight", "--sandbox", "caht"], "preflight", "chat"),
    ],
)
def test_a_wrong_sandbox_name_gets_a_suggestion(call, answers, arguments: list[str], function: str, meant: str) -> None:
    error = HotstartError(NO_SUCH_SANDBOX, "there is no sandbox caht")
    answers(**{function: error}, sandboxes=[sandbox(), sandbox("web")], snapshots=[], damaged_snapshots={})
    called = call(*arguments)
    assert called.code == 20
    assert called.error_line() == f"hotstart: no-such-sandbox: there is no sandbox caht; did you mean {meant}?"


def test_a_wrong_snapshot_name_gets_a_suggestion_among_damaged_ones_too(call, answers) -> None:
    error = HotstartError(REGISTRY["no-such-snapshot"], "there is no snapshot brokn")
    answers(inspect_snapshot=error, snapshots=[snapshot()], damaged_snapshots={"broken": "manifest-invalid"})
    called = call("snapshot", "inspect", "brokn")
    assert called.code == 50
    assert called.error_line().endswith("; did you mean broken?")


def test_no_suggestion_keeps_the_remedy(call, answers) -> None:
    answers(log_path=HotstartError(NO_SUCH_SANDBOX, "there is no sandbox zebra"), sandboxes=OSError("unreadable"))
    assert call("logs", "zebra").error_line().endswith("; hotstart ps lists them")


def test_shared_options_work_before_and_after_the_verb_and_the_inner_wins(call, answers, tmp_path) -> None:
    calls = answers(sandboxes=[])
    assert json.loads(call("--output", "json", "ps").out) == []
    assert json.loads(call("ps", "-o", "json").out) == []
    assert call("--output", "json", "ps", "--output", "table").out.startswith("NAME")
    call("--home", str(tmp_path / "a"), "ps")
    call("--home", str(tmp_path / "a"), "ps", "--home", str(tmp_path / "b"))
    assert [args[0] for args, _ in calls["sandboxes"][-2:]] == [tmp_path / "a", tmp_path / "b"]


def test_home_from_the_environment_or_the_default(call, answers, monkeypatch, tmp_path) -> None:
    calls = answers(sandboxes=[])
    monkeypatch.setenv("HOTSTART_HOME", str(tmp_path / "home"))
    call("ps")
    monkeypatch.setenv("HOTSTART_HOME", "")
    call("ps")
    monkeypatch.chdir(tmp_path)
    call("ps", "--home", "relative")
    assert [str(args[0]) for args, _ in calls["sandboxes"]] == [
        str(tmp_path / "home"),
        "/var/lib/hotstart",
        str(tmp_path / "relative"),
    ]


def test_everyone_but_root_is_told_so(call, monkeypatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for arguments in (
        ["ps"],
        ["run", "--", "true"],
        ["logs", "a"],
        ["stop", "a"],
        ["snapshot", "create", "a"],
        ["snapshot", "list"],
        ["snapshot", "inspect", "a"],
        ["snapshot", "verify", "a"],
        ["snapshot", "rm", "a"],
        ["restore", "a"],
        ["preflight"],
        ["doctor"],
    ):
        called = call(*arguments)
        assert called.code == 3
        assert called.error_line().startswith("hotstart: not-root: hotstart ")
    assert call("completion", "zsh").code == 0
    assert call("ps", "--help").code == 0
    assert call("--version").code == 0


def test_every_api_function_is_used_by_the_command_line() -> None:
    """A function that nothing calls would be a verb that is missing."""
    from pathlib import Path

    import hotstart.snapshot_agent.cli as cli

    text = "".join(path.read_text() for path in Path(cli.__file__).parent.glob("*.py"))
    public = [n for n, v in vars(api).items() if callable(v) and getattr(v, "__module__", "") == api.__name__]
    functions = [name for name in public if name[0].islower()]
    assert functions
    assert [name for name in functions if f"api.{name}(" not in text] == []
