"""What README and docs say is true: commands and options exist, links lead somewhere, codes are codes."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hotstart.reasons import REGISTRY
from hotstart.snapshot_agent.cli.root import program

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:hotstart|\./dev) [^`]+)`")
ENDS = {"|", ">", "&&", "||"}
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)(?:#[^)]*)?\)")
CODE = re.compile(r"^\*\*`([a-z0-9-]+)`", re.MULTILINE)


def _commands(page: Path) -> Iterator[list[str]]:
    """Every command of the page that is ours, as words; comments, prompts and what follows a pipe are left out."""
    text = page.read_text()
    lines = [line for block in FENCE.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    for line in [*lines, *INLINE.findall(text)]:
        words = shlex.split(line.removeprefix("$ "), comments=True)
        words = words[: next((at for at, word in enumerate(words) if word in ENDS or "$(" in word), len(words))]
        if words[:1] in (["hotstart"], ["./dev"], [".venv/bin/hotstart"]):
            yield words


def _cases() -> list[tuple[str, list[str]]]:
    return [(page.name, words) for page in PAGES for words in _commands(page)]


CASES = _cases()


def test_there_are_commands_to_check() -> None:
    assert any(words[0] == "hotstart" for _page, words in CASES)
    assert any(words[0] == "./dev" for _page, words in CASES)


@pytest.mark.parametrize(("page", "words"), [case for case in CASES if case[1][0] != "./dev"])
def test_verbs_and_options_exist(page: str, words: list[str]) -> None:
    command: click.Command = program
    context = click.Context(program, info_name="hotstart")
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        if rest[0].isupper() or rest[0] == "…":
            return  # "hotstart VERB --help" speaks of any
        found = command.get_command(context, rest[0])
        assert found is not None, f"{page}: {' '.join(words)}: no verb {rest[0]}"
        command, rest = found, rest[1:]
    ours = rest[: rest.index("--")] if "--" in rest else rest
    known = {option for param in command.get_params(context) for option in (*param.opts, *param.secondary_opts)}
    known |= {option for param in program.get_params(context) for option in param.opts} | {"--help", "-h"}
    unknown = [word for word in ours if word.startswith("-") and word.partition("=")[0] not in known]
    assert not unknown, f"{page}: {' '.join(words)}"


@pytest.mark.parametrize(("page", "words"), [case for case in CASES if case[1][0] == "./dev"])
def test_dev_has_the_command(page: str, words: list[str]) -> None:
    text = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^\./dev (\w+)", text, re.MULTILINE)) | {"help"}
    assert len(words) == 1 or words[1] in known, f"{page}: {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    dead = [
        target
        for target in LINK.findall(page.read_text())
        if not target.startswith(("http:", "https:")) and not (page.parent / target).exists()
    ]
    assert not dead


def test_troubleshooting_speaks_of_codes_that_exist() -> None:
    codes = CODE.findall((ROOT / "docs/troubleshooting.md").read_text())
    assert codes
    assert set(codes) <= REGISTRY.keys()


def test_help_is_shown_before_anything_is_installed(tmp_path: Path) -> None:
    """On a machine without Python, in a tree without .venv: it says what would be installed, and installs nothing."""
    copy = tmp_path / "tree"
    copy.mkdir()
    (copy / "dev").write_bytes((ROOT / "dev").read_bytes())
    (copy / "dev").chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "HOTSTART_CACHE": str(tmp_path / "cache"), "PYTHON": "/no/python"}
    done = subprocess.run(
        [copy / "dev", "demo", "--help"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "vLLM" in done.stdout
    assert sorted(path.name for path in copy.iterdir()) == ["dev"]
    assert not (tmp_path / "cache").exists()


def test_a_wrong_command_is_one_line() -> None:
    done = subprocess.run([ROOT / "dev", "tset"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "./dev help" in done.stderr
