"""The agent's side of coming to rest: order the worker to quiesce, and always bring it back to serving."""

from __future__ import annotations

from collections.abc import Callable

from hotstart import reasons
from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.hooks.control.directory import ControlDirectory, new_nonce
from hotstart.hooks.control.protocol import ControlError, Order, Report, State, Verb
from hotstart.reasons import ENGINE_NOT_READY, QUIESCE_FAILED, RESUME_FAILED

ANSWER_SECONDS = 5.0
"""The worker counts its time from when it sees the order, and knows best why it needed more: its word is waited for."""


def engine_report(control: ControlDirectory, engine: str) -> Report | None:
    """What the worker says of itself, None for a program without hooks (``engine`` is none).

    Raises ``engine-not-ready``, also for a worker that has not said anything yet: dumped in the middle of its start, it
    would come back as a program that nobody can bring to rest or wake up.
    """
    if engine == "none":
        return None
    report = read_report(control)
    if report is None:
        raise HotstartError(
            ENGINE_NOT_READY,
            "the engine has not reported yet",
            next_step="wait until it answers requests; a program without engine is run with --engine none",
        )
    if report.state is State.STARTING:  # any other: an agent that died has left it so, and the next order ends that
        raise HotstartError(ENGINE_NOT_READY, f"the engine is {report.state}")
    return report


def quiesce(control: ControlDirectory, deadline: Deadline, alive: Callable[[], None]) -> Report:
    """Bring the worker to rest; raises its reason when it cannot (it serves on then).

    The caller must hold the control directory's lock: a worker that finds it free takes its agent for dead.
    """
    order = Order(Verb.QUIESCE, new_nonce(), deadline_s=deadline.remaining(), held=True)
    control.give(order)
    patience = Deadline.after(deadline.remaining() + ANSWER_SECONDS, deadline.waiting_for)
    report = _wait(control, {State.QUIESCED, State.FAILED}, order.nonce, patience, alive)
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
