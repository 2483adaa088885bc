"""``--timeline FILE``: where a picture of the phases goes; refused early if it could not be written later."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from hotstart.snapshot_agent.cli import output

_Function = TypeVar("_Function", bound=Callable[..., Any])


class PictureFile(click.Path):
    """A file to be written, ``.svg`` or ``.png``."""

    name = "file"

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what could not be written later."""
        path = super().convert(value, param, ctx)
        assert isinstance(path, Path)
        if path.suffix not in (".svg", ".png"):
            self.fail(f"'{path}' ends neither in .svg nor in .png", param, ctx)
        if not path.absolute().parent.is_dir():
            self.fail(f"{path.absolute().parent} is not a directory", param, ctx)
        if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            self.fail(f"'{path}' cannot be written", param, ctx)
        if path.suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
            self.fail("PNG needs matplotlib: pip install 'hotstart[plot]', or write a .svg", param, ctx)
        return path


def option() -> Callable[[_Function], _Function]:
    """The option itself."""
    return click.option("--timeline", type=PictureFile(), metavar="FILE", help="Draw the phases as .svg or .png.")


def draw(phases: Sequence[tuple[str, Mapping[str, Any]]], path: Path) -> None:
    """Write the picture and say so."""
    from hotstart.snapshot_agent import timeline

    timeline.save(phases, path, ratios=False)  # copies of one snapshot are no race
    output.say(f"timeline: {path}")
