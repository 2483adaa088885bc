"""One operation on several names: the failure of one does not keep the others from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hotstart.errors import HotstartError
from hotstart.snapshot_agent.cli import output
from hotstart.snapshot_agent.cli.settings import Settings

Result = TypeVar("Result")

_AT_ONCE = 8


def one(names: Sequence[str], operation: Callable[[str], Result]) -> tuple[dict[str, Result], dict[str, HotstartError]]:
    """Results and failures by name, in the order of ``names``.

    Several names run in threads of their own.  On an interruption those not begun are dropped, and those begun are
    waited for.
    """
    done: dict[str, Result] = {}
    failed: dict[str, HotstartError] = {}
    if len(names) == 1:
        try:
            done[names[0]] = operation(names[0])
        except HotstartError as error:
            failed[names[0]] = error
        return done, failed
    pool = ThreadPoolExecutor(_AT_ONCE)
    futures = {name: pool.submit(operation, name) for name in names}
    try:
        for name, future in futures.items():
            try:
                done[name] = future.result()
            except HotstartError as error:
                failed[name] = error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return done, failed


def finish(settings: Settings, done: Sequence[Any], failed: dict[str, HotstartError], key: str) -> None:
    """Print the JSON, and raise the first failure; further ones are told on stderr before."""
    errors = list(failed.values())
    if settings.json:
        value: dict[str, Any] = {key: list(done)}
        if errors:
            value["errors"] = [{"name": name, **error.to_json()} for name, error in failed.items()]
            value["error"] = errors[0].to_json()
        output.write_json(value)
    for error in errors[1:]:
        output.say(f"hotstart: {error.line()}")
    if errors:
        raise output.Reported(errors[0])
