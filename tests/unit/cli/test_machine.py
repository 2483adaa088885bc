"""``hotstart preflight``, ``doctor``, ``completion``, ``--version``, help, and the page made of the help."""

from pathlib import Path

import click
import pytest

import hotstart
from hotstart.findings import Finding
from hotstart.reasons import BYTECODE_OFF, CRIU_MISSING, OUTSIDE_TCP
from hotstart.snapshot_agent.cli import reference
from hotstart.snapshot_agent.cli.root import program
from hotstart.snapshot_agent.cli.verbs import Group, Verb
from tests.unit.cli.samples import sandbox, snapshot

MILD = Finding(BYTECODE_OFF, "environment", "PYTHONDONTWRITEBYTECODE=1", "unset", fatal=False)
FATAL = Finding(OUTSIDE_TCP, "pid 101 (python)", "tcp to 1.2.3.4:443", "no peer outside", "close it")
WORSE = Finding(CRIU_MISSING, "CRIU", "nothing", "CRIU 4.2")


def test_preflight_with_nothing_in_the_way(call, answers) -> None:
    calls = answers(preflight=[])
    called = call("preflight")
    assert (called.code, called.out, called.err) == (0, "nothing here stands in the way\n", "")
    assert call("preflight", "chat", "-o", "json").json() == {"ok": True, "findings": []}
    call("preflight", "--sandbox", "web")
    assert [kwargs for _, kwargs in calls["preflight"]] == [
        {"snapshot": None, "sandbox": None},
        {"snapshot": "chat", "sandbox": None},
        {"snapshot": None, "sandbox": "web"},
    ]


def test_preflight_lists_what_forbids_first_and_exits_with_its_code(call, answers) -> None:
    answers(preflight=[MILD, FATAL, WORSE])
    called = call("preflight", "chat")
    assert called.code == 30
    lines = called.out.splitlines()
    assert lines[0].split() == ["REASON", "SUBJECT", "FOUND", "NEEDED", "WHAT", "TO", "DO"]
    assert [line.split()[1] for line in lines[1:]] == ["outside-tcp", "criu-missing", "bytecode-off"]
    assert lines[1].endswith("close it")
    assert lines[2].endswith(CRIU_MISSING.remedy)
    assert "nothing here" not in called.out
    called = call("preflight", "-o", "json")
    assert called.code == 30
    assert called.json()["ok"] is False
    assert [(f["reason"], f["fatal"]) for f in called.json()["findings"]] == [
        ("bytecode-off", False),
        ("outside-tcp", True),
        ("criu-missing", True),
    ]


def test_preflight_with_only_mild_findings(call, answers) -> None:
    answers(preflight=[MILD])
    called = call("preflight")
    assert called.code == 0
    assert called.out.splitlines()[-1] == "nothing here stands in the way"


def test_doctor(call, answers) -> None:
    answers(doctor=[("kernel", True, "6.1.0", None), ("CRIU", False, "nothing", WORSE)])
    called = call("doctor")
    assert called.code == 10
    lines = called.out.splitlines()
    assert lines[0].split() == ["✓", "kernel", "6.1.0"]
    assert lines[1].split() == ["✗", "CRIU", "nothing"]
    assert lines[2].strip() == f"needed: CRIU 4.2; {CRIU_MISSING.remedy}"
    value = call("doctor", "-o", "json").json()
    assert value["ok"] is False
    assert value["checks"][1]["finding"]["reason"] == "criu-missing"
    answers(doctor=[("kernel", True, "6.1.0", None)])
    assert call("doctor").code == 0


def test_version(call) -> None:
    assert call("--version").out == f"hotstart {hotstart.__version__}\n"
    assert call("-V").out == f"hotstart {hotstart.__version__}\n"


def test_no_arguments_is_help(call) -> None:
    called = call()
    assert called.code == 0
    assert called.out == call("--help").out
    assert "snapshot create" in called.out
    assert call("snapshot").out == call("snapshot", "--help").out


def verbs(group: Group, path: str = "hotstart") -> list[tuple[str, Verb]]:
    ctx = click.Context(group, info_name=path)
    found: list[tuple[str, Verb]] = []
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, Group):
            found += verbs(command, f"{path} {name}")
        else:
            assert isinstance(command, Verb)
            found.append((f"{path} {name}", command))
    return found


@pytest.mark.parametrize(("path", "command"), verbs(program), ids=[path for path, _ in verbs(program)])
def test_every_verb_explains_itself_with_examples_that_parse(call, path: str, command: Verb) -> None:
    import shlex

    assert command.help
    assert command.examples
    text = call(*path.split()[1:], "--help").out
    assert "Examples:" in text
    assert "--output" in text
    for option in command.own_params:
        if isinstance(option, click.Option):
            assert option.help, option.name
    for what, typed in command.examples:
        assert what in text
        assert typed in text
        if typed.startswith(f"{path} ") and "$(" not in typed:
            words = shlex.split(typed.split("|")[0].split(">")[0])[len(path.split()) :]
            with command.make_context(path, words):
                pass


def test_the_page_is_current() -> None:
    page = Path(__file__).parents[3] / "docs/cli.md"
    assert page.read_text() == reference.markdown(), "python -m hotstart.snapshot_agent.cli.reference > docs/cli.md"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(call, shell: str) -> None:
    script = call("completion", shell).out
    assert f"_HOTSTART_COMPLETE={shell}_complete" in script
    assert call("completion", shell, "-o", "json").json() == {"shell": shell, "script": script}


@pytest.fixture
def complete(call, answers, monkeypatch):
    """What bash would offer after these words."""
    answers(
        sandboxes=[sandbox("chat-1"), sandbox("chat-2"), sandbox("web")],
        snapshots=[snapshot("smollm")],
        damaged_snapshots={"broken": "x"},
    )

    def run(*words: str) -> list[str]:
        monkeypatch.setenv("_HOTSTART_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(["hotstart", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        called = call()
        assert called.err == ""
        return [line.partition(",")[2] for line in called.out.splitlines() if line]

    return run


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["s"], ["stop", "snapshot"]),
        (["snapshot", "i"], ["inspect"]),
        (["ps", "--q"], ["--quiet"]),
        (["logs", ""], ["chat-1", "chat-2", "web"]),
        (["logs", "chat"], ["chat-1", "chat-2"]),
        (["stop", "chat-1", "ch"], ["chat-2"]),
        (["snapshot", "create", "w"], ["web"]),
        (["snapshot", "inspect", ""], ["broken", "smollm"]),
        (["snapshot", "rm", "smollm", ""], ["broken"]),
        (["restore", "sm"], ["smollm"]),
        (["preflight", "--sandbox", "w"], ["web"]),
        (["preflight", "b"], ["broken"]),
        (["--output", ""], ["table", "json"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["run", "--engine", ""], ["auto", "none"]),
    ],
)
def test_completion(complete, words: list[str], offered: list[str]) -> None:
    assert complete(*words) == offered


def test_completion_is_silent_when_names_cannot_be_read(complete, answers) -> None:
    answers(sandboxes=PermissionError(13, "Permission denied"))
    assert complete("logs", "") == []
