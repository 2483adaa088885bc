"""Names of sandboxes and snapshots that exist: for shell completion, and for "did you mean"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from hotstart.errors import HotstartError
from hotstart.reasons import NO_SUCH_SANDBOX, NO_SUCH_SNAPSHOT
from hotstart.snapshot_agent.cli import naming, settings


def sandbox_names(home: Path) -> list[str]:
    """Names of all sandboxes."""
    from hotstart.snapshot_agent import api

    return [sandbox.name for sandbox in api.sandboxes(home)]


def snapshot_names(home: Path) -> list[str]:
    """Names of all snapshots, damaged ones included: these too can be verified and removed."""
    from hotstart.snapshot_agent import api

    return sorted({*(snapshot.name for snapshot in api.snapshots(home)), *api.damaged_snapshots(home)})


_Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _completer(names: Callable[[Path], list[str]]) -> _Completer:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        given = ctx.params.get(param.name or "") or ()
        taken = {given} if isinstance(given, str) else set(given)
        try:
            known = names(settings.resolve(ctx).home)
        except (HotstartError, OSError):  # in the middle of a command line nobody wants to read of it
            return []
        return [name for name in known if name.startswith(incomplete) and name not in taken]

    return complete


complete_sandbox = _completer(sandbox_names)
complete_snapshot = _completer(snapshot_names)


@contextmanager
def suggesting(home: Path, name: str) -> Iterator[None]:
    """A failure because ``name`` does not exist says which existing name was probably meant."""
    try:
        yield
    except HotstartError as error:
        names = {NO_SUCH_SANDBOX: sandbox_names, NO_SUCH_SNAPSHOT: snapshot_names}.get(error.reason)
        try:
            meant = naming.closest(name, names(home)) if names else ""
        except (HotstartError, OSError):
            meant = ""
        if not meant:
            raise
        raise HotstartError(
            error.reason, error.detail, tried=error.tried, next_step=f"did you mean {meant}?"
        ) from error
