"""The options that every verb shares: where state lies, how results are printed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from hotstart import names

TABLE, JSON = "table", "json"


@dataclass(frozen=True)
class Settings:
    """What the shared options say, for one call."""

    home: Path
    json: bool
    color: bool
    debug: bool


def shared_options() -> list[click.Option]:
    """Fresh instances of the shared options; they stand on the program and on every verb, the innermost wins."""
    return [
        click.Option(
            ["--output", "-o"],
            type=click.Choice([TABLE, JSON]),
            default=None,
            expose_value=False,
            callback=_remember,
            help="Print tables for people, or one JSON value on stdout.  [default: table]",
        ),
        click.Option(
            ["--home"],
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            default=None,
            expose_value=False,
            callback=_remember,
            help=f"Where sandboxes and snapshots lie.  [default: ${names.HOME_ENV}, else {names.DEFAULT_HOME}]",
        ),
        click.Option(
            ["--no-color"],
            is_flag=True,
            default=None,
            expose_value=False,
            callback=_remember,
            help="Print without colors (so does NO_COLOR).",
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            default=None,
            expose_value=False,
            callback=_remember,
            help="Print a traceback when something fails.",
        ),
    ]


_KEY = "hotstart.shared"


def _remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
    if value is not None and value is not False and param.name:
        ctx.meta.setdefault(_KEY, {})[param.name] = value  # meta is shared with parents; inner options come later


def resolve(ctx: click.Context) -> Settings:
    """The settings of a call whose options have been parsed."""
    said = ctx.meta.get(_KEY, {})
    home = said.get("home") or Path(os.environ.get(names.HOME_ENV) or names.DEFAULT_HOME)
    return Settings(
        home=home.absolute(),
        json=said.get("output") == JSON,
        color=not said.get("no_color") and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb",
        debug=bool(said.get("debug")),
    )


def guess(arguments: Sequence[str]) -> tuple[bool, bool]:
    """Whether JSON and tracebacks were asked for, read off a command line that could not be parsed."""
    own = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    pairs = list(zip(own, [*own[1:], ""], strict=True))
    json = any(
        (word in ("--output", "-o") and value == JSON) or word in (f"--output={JSON}", f"-o{JSON}")
        for word, value in pairs
    )
    return json, "--debug" in own
