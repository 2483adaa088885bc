"""The agent's side of coming to rest: order the worker to quiesce, and always bring it back to serving."""

from __future__ import annotations

from collections.abc import Callable

from hotstart import reasons
from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.hooks.control.directory import ControlDirectory, new_nonce
from hotstart.hooks.control.protocol import ControlError, Order, Report, State, Verb
from hotstart.reasons import ENGINE_NOT_READY, QUIESCE_FAILED, RESUME_FAILED

_SERVING = {State.READY, State.RESUMED, State.FAILED}


def engine_report(control: ControlDirectory) -> Report | None:
    """What the worker says of itself, None for a program without hooks; raises ``engine-not-ready``."""
    report = read_report(control)
    if report is None:
        return None
    if report.state not in _SERVING:
        raise HotstartError(ENGINE_NOT_READY, f"the engine is {report.state}")
    return report


def quiesce(control: ControlDirectory, deadline: Deadline, alive: Callable[[], None]) -> Report:
    """Bring the worker to rest; raises its reason when it cannot (it serves on then)."""
    order = Order(Verb.QUIESCE, new_nonce(), deadline_s=deadline.remaining())
    control.give(order)
    report = _wait(control, {State.QUIESCED, State.FAILED}, order.nonce, deadline, alive)
    if report.state is State.FAILED:
        reason = reasons.REGISTRY.get(report.reason, QUIESCE_FAILED)
        raise HotstartError(reason, report.detail or "the worker gave no detail", tried="bringing the worker to rest")
    return report


def serve_on(control: ControlDirectory, deadline: Deadline, alive: Callable[[], None]) -> Report:
    """Bring the source back to serving after its capture, or after one that failed; raises ``resume-failed``."""
    order = Order(Verb.RESUME, new_nonce(), deadline_s=deadline.remaining())
    control.give(order)
    report = _wait(control, {State.RESUMED, State.FAILED}, order.nonce, deadline, alive)
    if report.state is State.FAILED:
        raise HotstartError(RESUME_FAILED, report.detail or report.reason, tried="bringing the source back to serving")
    return report


def read_report(control: ControlDirectory) -> Report | None:
    """The worker's report; raises ``quiesce-failed`` for one that cannot be read (it is hostile input)."""
    try:
        return control.state()
    except ControlError as error:
        raise HotstartError(QUIESCE_FAILED, f"the worker's state file is not valid: {error}") from None


def _wait(
    control: ControlDirectory, states: set[State], nonce: str, deadline: Deadline, alive: Callable[[], None]
) -> Report:
    try:
        return control.wait_for(states, nonce, deadline, alive)
    except ControlError as error:
        raise HotstartError(QUIESCE_FAILED, f"the worker's state file is not valid: {error}") from None
