"""docs/cli.md from the help texts: ``python -m hotstart.snapshot_agent.cli.reference > docs/cli.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from hotstart.snapshot_agent.cli import settings
from hotstart.snapshot_agent.cli.root import program
from hotstart.snapshot_agent.cli.verbs import Group, Verb

_HEAD = """\
# The command line

<!-- Written by python -m hotstart.snapshot_agent.cli.reference; edit the help texts, not this file. -->

`hotstart VERB --help` shows the same in the terminal. Names of sandboxes and snapshots, verbs and options are completed
by the shell after `eval "$(hotstart completion bash)"` (or zsh, fish).
"""

_CONVENTIONS = """\
## What is printed where

Results go to stdout, words about them (progress, hints, failures) to stderr. With `--output json`, stdout holds exactly
one JSON value. On a terminal, tables are fitted to its width and colored, and long operations show bars; in a pipe or
file, tables are whole and plain, and each phase is one line on stderr.

A failure is one line, `hotstart: REASON: what was found; what to do`, and an exit code. With `--output json`, stdout
then holds an object with the member `error`: `reason`, `detail`, `tried`, `next_step`, `exit_code`. `--debug` adds a
traceback on stderr. The first Ctrl-C, SIGTERM or SIGHUP ends an operation and undoes what it had begun; further ones do
not stop the undoing.

## The worker's environment

`hotstart run` starts the command as the shell would have: with the caller's environment, so that virtual environments,
caches and engine settings work unchanged. Two kinds of variables are left out. Those of the session (`TERM`, `SSH_*`,
`DISPLAY`, `XDG_RUNTIME_DIR`, `NOTIFY_SOCKET` …), which would be wrong in a restored copy. And those that look like
secrets of other programs: a name with the word TOKEN, SECRET, PASSWORD or CREDENTIALS or ending in KEY, or a URL that
holds a password. Their names are told on stderr; `--env NAME` passes one on. Variables of the engines themselves
(`HF_*`, `VLLM_*`, `TORCH*`, `CUDA_*` …) are always passed, `HF_TOKEN` and `VLLM_API_KEY` included: the worker does not
work, or is not protected, without them.

What the worker has been given is in its memory, so it is in every snapshot of it. It is also kept beside sandbox and
snapshot for a cold start, in files that only root can read. It is never printed: `inspect` shows the names.

## Exit codes

docs/reasons.md lists every reason with its code.

| code | what it is about |
|---|---|
| 0 | done |
| 2 | the command line is not valid |
| 3 | root is needed |
| 4, 5 | something took too long; a file is not what it must be |
| 10 to 19 | the machine lacks something: CRIU, a kernel feature, disk space … |
| 20 to 29 | sandboxes |
| 30 | the worker holds something that cannot be captured |
| 40 to 49 | the capture failed; the worker serves on |
| 50 to 59 | snapshots at rest: missing, busy, damaged |
| 60 to 69 | the restore failed; 66: a copy cold started instead |
| 70 | a defect of Hotstart |
| 130 | interrupted, and undone |
| 141 | whoever read stdout has gone |
"""


def markdown() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_verbs(), _shared(), _CONVENTIONS])


def _verbs() -> Iterator[str]:
    for title, verbs in program.sections.items():
        yield f"## {title}\n"
        for name in verbs:
            ctx = click.Context(program, info_name="hotstart")
            command = program.get_command(ctx, name)
            if isinstance(command, Group):
                for inner in command.list_commands(ctx):
                    yield _verb(f"hotstart {name} {inner}", command.get_command(ctx, inner))
            else:
                yield _verb(f"hotstart {name}", command)


def _verb(path: str, command: click.Command | None) -> str:
    assert isinstance(command, Verb)
    arguments = [param.make_metavar(click.Context(command)) for param in command.own_params if _is_argument(param)]
    usage = " ".join([path, "[OPTIONS]", *arguments])
    help_text = "\n".join(line.strip() for line in (command.help or "").splitlines()).strip()
    parts = [f"### {path}\n", f"`{usage}`\n", f"{help_text}\n"]
    options = [param for param in command.own_params if isinstance(param, click.Option)]
    if options:
        parts.append(_options(options, command))
    if command.examples:
        examples = "\n\n".join(f"# {what}\n{typed}" for what, typed in command.examples)
        parts.append(f"```sh\n{examples}\n```\n")
    return "\n".join(parts)


def _is_argument(param: click.Parameter) -> bool:
    return isinstance(param, click.Argument)


def _options(options: list[click.Option], command: click.Command) -> str:
    ctx = click.Context(command)
    lines = ["| option | meaning |", "|---|---|"]
    for option in options:
        record = option.get_help_record(ctx)
        assert record is not None
        name, meaning = (" ".join(text.split()).replace("|", "\\|") for text in record)
        lines.append(f"| `{name}` | {meaning} |")
    return "\n".join(lines) + "\n"


def _shared() -> str:
    return "## Shared options\n\nEvery verb takes these; before the verb they work too.\n\n" + _options(
        settings.shared_options(), program
    )


if __name__ == "__main__":
    sys.stdout.write(markdown())
