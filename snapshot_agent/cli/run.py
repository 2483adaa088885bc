"""``hotstart run``: start a worker in a sandbox."""

from __future__ import annotations

import os
import pwd
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hotstart.errors import HotstartError
from hotstart.reasons import DEADLINE, INTERRUPTED
from hotstart.snapshot_agent.cli import environment, interrupts, naming, output, progress, show
from hotstart.snapshot_agent.cli.settings import Settings
from hotstart.snapshot_agent.cli.verbs import seconds, verb

if TYPE_CHECKING:
    from hotstart.snapshot_agent import api

_TAIL_BYTES = 4096


@verb(
    short_help="Start a worker in a sandbox of its own.",
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "allow_interspersed_args": False,
    },
    examples=[
        (
            "serve a model; the command is what you type without Hotstart",
            "hotstart run -- vllm serve ./model --port 8000",
        ),
        (
            "the same with a name and a directory that is not part of snapshots",
            "hotstart run --name chat --volume /models:/models -- python -m vllm.entrypoints.openai.api_server "
            "--model /models/chat",
        ),
        ("a program without engine plugin, as another user", "hotstart run --engine none --user nobody -- ./server.py"),
        ("pass a secret of the caller on", "hotstart run --env AWS_SECRET_ACCESS_KEY -- vllm serve s3://bucket/model"),
    ],
)
@click.option("--name", metavar="NAME", help="The sandbox's name.  [default: from the command]")
@click.option("--user", metavar="UID[:GID]", help="Run the command as this user (number, or name on the host).")
@click.option("--cwd", metavar="DIR", help="Working directory.  [default: here; with --rootfs: /]")
@click.option(
    "--env",
    "-e",
    "env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set a variable, or pass the caller's on.  Repeatable.",
)
@click.option("--clean-env", is_flag=True, help="Start from PATH and locale instead of the caller's environment.")
@click.option(
    "--tmpfs", multiple=True, metavar="PATH", help="Mount a tmpfs here; it travels with snapshots.  Repeatable."
)
@click.option(
    "--volume",
    "-v",
    "volumes",
    multiple=True,
    metavar="SRC:DST[:rw]",
    help="Bind-mount a host path, read-only unless :rw; never part of a snapshot.  Repeatable.",
)
@click.option(
    "--rootfs",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    default="/",
    metavar="DIR",
    help="Root file system, only read: changes go to an overlay.  [default: the host's]",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="auto: engine plugins attach themselves; none: the program is captured as it stands.",
)
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Attach a label.  Repeatable.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the engine answers requests.")
@click.option("--wait-timeout", type=seconds, default=900, show_default=True, metavar="S", help="Seconds to wait.")
@click.argument("command_line", nargs=-1, required=True, metavar="COMMAND...")
def run(
    settings: Settings,
    name: str | None,
    user: str | None,
    cwd: str | None,
    env: tuple[str, ...],
    clean_env: bool,
    tmpfs: tuple[str, ...],
    volumes: tuple[str, ...],
    rootfs: str,
    engine: str,
    labels: tuple[str, ...],
    wait: bool,
    wait_timeout: float,
    command_line: tuple[str, ...],
) -> None:
    """Start COMMAND, unchanged, in a sandbox: own processes, files, network address.

    The command gets the caller's environment without what belongs to the terminal session (TERM, SSH_*, DISPLAY …) and
    without variables that look like secrets of other programs (…_TOKEN, …_PASSWORD, …_KEY; their names are told).
    Engine variables (HF_*, VLLM_* …) are always passed. The environment is kept, readable by root alone, with the
    sandbox and its snapshots, and is never printed.
    """
    from hotstart.snapshot_agent import api

    uid, gid, groups, person = _person(user, rootfs)
    try:
        passed = environment.build(os.environ, env, person=person, clean=clean_env)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--env") from None
    if passed.withheld:
        output.say(
            f"hotstart: not passed to the worker, since they look like secrets: {', '.join(passed.withheld)} "
            "(--env NAME passes one)"
        )
    spec = api.SandboxSpec(
        name=naming.from_command(command_line, naming.suffix(secrets.token_bytes(4))) if name is None else name,
        command=command_line,
        env=passed.variables,
        cwd=_cwd(cwd, rootfs),
        uid=uid,
        gid=gid,
        groups=groups,
        rootfs=rootfs,
        tmpfs=tuple(_absolute(path, "--tmpfs") for path in tmpfs),
        volumes=tuple(_volume(volume) for volume in volumes),
        engine=engine,
        labels=dict(_label(label) for label in labels),
    )
    with interrupts.undone("the start", "no sandbox is left"):
        info = api.run(settings.home, spec)
    if wait and engine != "none":
        info = _wait(settings, spec.name, wait_timeout)
    interrupts.done()
    show.started(settings, info)


command = run


def _wait(settings: Settings, name: str, timeout_s: float) -> api.SandboxInfo:
    from hotstart.snapshot_agent import api

    log = api.log_path(settings.home, name)
    try:
        with progress.waiting(settings, f"the engine in {name}", lambda: _last_line(log)):
            return api.wait_ready(settings.home, name, timeout_s)
    except KeyboardInterrupt:
        raise HotstartError(
            INTERRUPTED,
            f"stopped waiting; the sandbox {name} starts on",
            next_step=f"hotstart logs -f {name}, or hotstart stop {name}",
        ) from None
    except HotstartError as error:
        if error.reason is not DEADLINE:
            raise
        raise HotstartError(
            DEADLINE,
            f"the engine in {name} was not ready after {timeout_s:g} s; the sandbox runs on",
            next_step=f"hotstart logs {name} shows what it does; a program without engine plugin needs --engine none",
        ) from error


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _person(user: str | None, rootfs: str) -> tuple[int, int, tuple[int, ...], dict[str, str]]:
    """uid, gid, groups and the variables that follow; without ``--user`` the caller's own."""
    if user is None:
        return os.geteuid(), os.getegid(), (), {}
    name, _, group = user.partition(":")
    entry = None
    if rootfs == "/":
        try:
            entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
        except (KeyError, OverflowError):
            entry = None
    if not name.isdecimal() and entry is None:
        place = "the host has no user of that name" if rootfs == "/" else "with --rootfs only numbers are understood"
        raise click.BadParameter(f"'{user}': {place}", param_hint="--user")
    if group and not group.isdecimal():
        raise click.BadParameter(f"'{user}': the group is not a number", param_hint="--user")
    uid = entry.pw_uid if entry else int(name)
    gid = int(group) if group else entry.pw_gid if entry else uid
    if max(uid, gid) >= 2**32 - 1:
        raise click.BadParameter(f"'{user}': ids end at {2**32 - 2}", param_hint="--user")
    if entry is None:
        return uid, gid, (), {"HOME": "/"}
    groups = () if group else tuple(g for g in os.getgrouplist(entry.pw_name, gid) if g != gid)
    return uid, gid, groups, {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}


def _cwd(given: str | None, rootfs: str) -> str:
    if given is not None:
        return given if rootfs != "/" and given.startswith("/") else str(Path(given).absolute())
    if rootfs != "/":
        return "/"
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise click.UsageError(
            "the current directory no longer exists; give --cwd", click.get_current_context()
        ) from None


def _absolute(path: str, option: str) -> str:
    if not path.startswith("/") or os.path.normpath(path) == "/":
        raise click.BadParameter(f"'{path}' is not an absolute path below /", param_hint=option)
    return os.path.normpath(path)


def _volume(text: str) -> api.Volume:
    from hotstart.snapshot_agent import api

    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target or mode not in ("", "ro", "rw"):
        raise click.BadParameter(f"'{text}' is not SRC:DST or SRC:DST:rw", param_hint="--volume")
    path = Path(source).absolute()
    if not path.exists():
        raise click.BadParameter(f"{path} does not exist", param_hint="--volume")
    return api.Volume(source=str(path), target=_absolute(target, "--volume"), read_only=mode != "rw")


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"'{text}' is not KEY=VALUE", param_hint="--label")
    return key, value
