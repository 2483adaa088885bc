"""How verbs are declared: shared options, examples in the help, lazy loading, errors of one line with a suggestion."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from hotstart.errors import HotstartError
from hotstart.reasons import NOT_ROOT
from hotstart.snapshot_agent.cli import naming, settings

CONTEXT: Mapping[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

Example = tuple[str, str]
"""What one wants, and what one types for it."""


def seconds(value: str | float) -> float:
    """Option type: a length of time, finite and not negative."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise click.BadParameter(f"'{value}' is not a number of seconds")
    return number


def whole(least: int, most: int) -> Callable[[str | int], int]:
    """Option type: a whole number in a range."""

    def number(value: str | int) -> int:
        try:
            parsed = int(value)
        except ValueError:
            parsed = least - 1
        if not least <= parsed <= most:
            raise click.BadParameter(f"'{value}' is not a whole number from {least} to {most}")
        return parsed

    return number


class Verb(click.Command):
    """A command with the shared options and examples; it gets the :class:`settings.Settings` as its first argument."""

    def __init__(self, *args: Any, examples: Sequence[Example] = (), needs_root: bool = True, **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", dict(CONTEXT))
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.needs_root = needs_root
        self.own_params = tuple(self.params)
        self.params = [*self.params, *settings.shared_options()]

    def invoke(self, ctx: click.Context) -> Any:
        """Resolve the settings, refuse early without root, run."""
        ctx.obj = settings.resolve(ctx)
        if self.needs_root and os.geteuid() != 0:
            raise HotstartError(NOT_ROOT, f"{ctx.command_path} needs root, this is uid {os.geteuid()}")
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verb's own options first, then the shared ones."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        own = [option for option in options if option in self.own_params]
        shared = [option for option in options if option not in self.own_params]
        for title, listed in (("Options", own), ("Shared options", shared)):
            records = [record for option in listed if (record := option.get_help_record(ctx))]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """The examples, unwrapped: a line break in a command would break it."""
        if self.examples:
            with formatter.section("Examples"):
                for number, (what, typed) in enumerate(self.examples):
                    formatter.write("" if number == 0 else "\n")
                    formatter.write(f"  # {what}\n  {typed}\n")


class Group(click.Group):
    """Verbs that are imported when they are asked for, listed in sections, with a suggestion for a mistyped one."""

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Mapping[str, str]],
        synonyms: Mapping[str, str],
        **kwargs: Any,
    ) -> None:
        """``sections``: title → verb → module whose ``command`` it is; ``synonyms``: other words for verbs."""
        kwargs.setdefault("context_settings", dict(CONTEXT))
        super().__init__(*args, **kwargs)
        self.sections = sections
        self.synonyms = synonyms
        self.params = [*self.params, *settings.shared_options()]

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """All verbs in the order of the help."""
        return [verb for verbs in self.sections.values() for verb in verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the verb's module; None for an unknown verb."""
        for verbs in self.sections.values():
            if cmd_name in verbs:
                command = importlib.import_module(verbs[cmd_name]).command
                assert isinstance(command, click.Command)
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown verb is answered with what was probably meant."""
        word = args[0]
        if not word.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, word) is None:
            meant = self.synonyms.get(word) or naming.closest(word, self.list_commands(ctx))
            hint = f" (did you mean '{meant}'?)" if meant else ""
            raise click.UsageError(f"no such command '{word}'{hint}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section a topic; a group's verbs are listed with it."""
        for title, verbs in self.sections.items():
            records = []
            for name in verbs:
                command = self.get_command(ctx, name)
                if isinstance(command, Group):
                    inner = command.list_commands(ctx)
                    records += [(f"{name} {verb}", _short(command.get_command(ctx, verb))) for verb in inner]
                else:
                    records.append((name, _short(command)))
            with formatter.section(title):
                formatter.write_dl(records)


def _short(command: click.Command | None) -> str:
    return command.get_short_help_str(limit=72) if command else ""


def verb(
    *, examples: Sequence[Example] = (), needs_root: bool = True, **attributes: Any
) -> Callable[[Callable[..., Any]], Verb]:
    """Decorator: the function becomes a :class:`Verb`; its name is the verb's, its docstring the help."""

    def decorate(function: Callable[..., Any]) -> Verb:
        made = click.command(
            function.__name__.rstrip("_"), cls=Verb, examples=examples, needs_root=needs_root, **attributes
        )(click.pass_obj(function))
        assert isinstance(made, Verb)
        return made

    return decorate


def usage_error(error: click.ClickException) -> tuple[str, str]:
    """A click error as one sentence and where to look (pure apart from reading the error)."""
    ctx = getattr(error, "ctx", None)
    where = f"see {ctx.command_path if ctx is not None else 'hotstart'} --help"
    if isinstance(error, click.NoSuchOption):
        known = [name for param in ctx.command.get_params(ctx) for name in param.opts] if ctx is not None else []
        meant = naming.closest(error.option_name.lstrip("-"), [name[2:] for name in known if name.startswith("--")])
        hint = f" (did you mean '--{meant}'?)" if meant else ""
        return f"no such option '{error.option_name}'{hint}", where
    sentence = " ".join(error.format_message().split()).rstrip(".")
    return sentence[:1].lower() + sentence[1:], where
