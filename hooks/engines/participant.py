"""The worker's half of the conversation with the agent: one daemon thread that runs the state machine of the protocol.

It lives in the worker's leader process and is engine-neutral.  Three properties of a captured process shape it:

* After a restore this thread goes on from inside its waiting loop, in another sandbox that has another directory at the
  same path.  Nothing is kept open, and a poll opens nothing either (it may be frozen at any moment) before it has seen
  by the path that the order is another one.
* Clocks jump: by the time the source was frozen, and to anywhere when a copy wakes up on another machine.  The loop
  sleeps with a relative nanosleep of its own (``time.sleep`` hands the kernel an absolute monotonic time, which would
  sleep for days on a machine that booted later), and it counts time at rest in slices that no jump can enlarge.
* A copy whose agent has died must not start serving as if it were the source.  Rolling back without an order is
  therefore done only where the worker came to rest: same boot, same pid namespace, same control directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hotstart import audit, reasons
from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.findings import Finding
from hotstart.hooks.control.directory import ControlDirectory
from hotstart.hooks.control.protocol import Canary, ControlError, Order, Report, State, Verb, may_follow
from hotstart.hooks.engines import cold_start
from hotstart.hooks.engines.contract import (
    CANARY_PROMPT,
    CANARY_TOKENS_AT_CAPTURE,
    CANARY_TOKENS_AT_RESTORE,
    Engine,
    Facts,
    canary_difference,
)
from hotstart.reasons import Reason

BOOT_NONCE = "boot"
IDLE_POLL_S = 0.1
REST_POLL_S = 0.004
"""While quiesced, so that a restore is noticed at once."""
DRAIN_POLL_S = 0.004
ROLLBACK_GRACE_S = 60.0
"""A worker at rest goes back to serving by itself after the order's deadline and this, in seconds it really ran."""
_SLICE_S = 0.1
_REMEMBERED_ORDERS = 64

Audit = Callable[[Sequence[int]], list[Finding]]
_libc = ctypes.CDLL(None)


class _Superseded(Exception):
    """Another order has taken the place of the one being carried out."""


class Participant:
    """Carries out the agent's orders on one engine.

    ``start`` reports ``starting``; ``ready`` is called (from any thread) once the engine answers requests.
    """

    def __init__(self, engine: Engine, control: ControlDirectory, check: Audit = audit.audit_self) -> None:
        self._engine = engine
        self._control = control
        self._check = check
        self._state = State.STARTING
        self._nonce = BOOT_NONCE
        self._open = True
        self._is_ready = threading.Event()
        self._answered: deque[tuple[Verb, str]] = deque(maxlen=_REMEMBERED_ORDERS)
        self._facts: Facts = {}
        self._rest: _Rest | None = None
        self._untold: Report | None = None
        self._mark: tuple[int, int, int, int] | None = None
        self._current: Order | None = None
        self._told = ""

    def start(self) -> None:
        """Report ``starting`` and begin to listen.  An order that lies there already is of an earlier process."""
        if stale := self._order():
            self._answered.append((stale.verb, stale.nonce))
        self._control.report(Report(State.STARTING, BOOT_NONCE, self._engine.name, os.getpid()))
        threading.Thread(target=self._run, name="hotstart", daemon=True).start()

    def ready(self) -> None:
        """The engine answers requests now."""
        self._facts["cold_start_s"] = round(cold_start.seconds_since_start(), 3)
        self._is_ready.set()

    # --- the loop ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._is_ready.wait()
        while True:
            try:
                self.step()
            except Exception as error:  # noqa: BLE001  the thread must outlive anything, or the worker is deaf
                self._say(f"{type(error).__name__}: {error}")
            _nap(REST_POLL_S if self._state is State.QUIESCED else IDLE_POLL_S)

    def step(self) -> None:
        """One poll: carry out a new order, or give up a rest that nobody ends."""
        if self._untold:
            self._report(self._untold)
        if self._state is State.STARTING:
            self._move(State.READY, facts=self._known_facts())
        order = self._new_order()
        if order is None:
            if self._state is State.QUIESCED and self._rest and self._rest.over():
                self._give_up_rest(self._rest)
            elif self._state is State.QUIESCED and self._rest and self._rest.abandoned(self._control):
                self._give_up_rest(self._rest, "the agent is gone, so the worker ended its rest")
            return
        self._answered.append((order.verb, order.nonce))
        if order.verb is Verb.QUIESCE:
            self._quiesce(order)
        else:
            self._resume(order)

    def _order(self) -> Order | None:
        try:
            mark = self._control.order_mark()
            if mark != self._mark:
                self._current = self._control.order()
                self._mark = mark
            return self._current
        except (ControlError, HotstartError, OSError) as error:
            self._say(f"the order cannot be read: {error}")
            return None

    def _new_order(self) -> Order | None:
        order = self._order()
        return None if order is None or (order.verb, order.nonce) in self._answered else order

    # --- capture ----------------------------------------------------------------------------------------------------

    def _quiesce(self, order: Order) -> None:
        if self._state is State.QUIESCED and self._rest:  # its agent is gone, and the successor wants a rest of its own
            self._give_up_rest(self._rest)
        self._nonce = order.nonce
        self._move(State.QUIESCING)
        deadline = Deadline.after(order.deadline_s, "the worker to come to rest")
        watch = _Watch()
        try:
            facts, canary = self._come_to_rest(order, deadline, watch)
            self._rest = _Rest(order.deadline_s + ROLLBACK_GRACE_S, self._control.path, held=order.held)
            self._move(State.QUIESCED, facts=facts | watch.facts(), canary=canary)
        except Exception as error:  # noqa: BLE001  whatever it was, the worker serves on
            reason, detail = _explain(error, reasons.QUIESCE_FAILED)
            try:
                self._reopen(Deadline.after(order.deadline_s, "the worker to serve again"))
            except Exception as second:  # noqa: BLE001
                reason, detail = reasons.RESUME_FAILED, f"{detail}; and then {_explain(second, reason)[1]}"
            self._move(State.FAILED, reason=reason, detail=detail, facts=watch.facts())

    def _come_to_rest(self, order: Order, deadline: Deadline, watch: _Watch) -> tuple[Facts, Canary]:
        engine = self._engine
        with watch.step("drain"):
            self._open = False
            engine.close(deadline)
            self._drain(order, deadline)
        with watch.step("canary"):
            canary = engine.canary(CANARY_PROMPT, CANARY_TOKENS_AT_CAPTURE, deadline)
        with watch.step("release_kv"):
            kv = engine.release_kv(deadline)
        with watch.step("settle"):
            engine.settle(deadline)
        with watch.step("audit"):
            self._audit()
        deadline.check()
        facts = self._known_facts()
        facts |= {"kv_bytes": kv.kv_bytes, "kv_released_bytes": kv.released_bytes, "running": engine.running()}
        return facts, canary

    def _drain(self, order: Order, deadline: Deadline) -> None:
        while (running := self._engine.running()) > 0:
            if deadline.expired():
                raise HotstartError(
                    reasons.QUIESCE_BUSY, f"{running} requests were not answered within {order.deadline_s:g} s"
                )
            if self._new_order() is not None:
                raise _Superseded
            _nap(DRAIN_POLL_S)

    def _audit(self) -> None:
        fatal = [finding for finding in self._check(self._engine.processes()) if finding.fatal]
        if fatal:
            first = fatal[0]
            more = f" (and {len(fatal) - 1} more)" if len(fatal) > 1 else ""
            raise HotstartError(first.reason, f"{first.subject}: {first.found}{more}")

    # --- back to serving --------------------------------------------------------------------------------------------

    def _resume(self, order: Order) -> None:
        self._nonce = order.nonce
        self._move(State.RESUMING)
        deadline = Deadline.after(order.deadline_s, "the worker to resume")
        watch = _Watch()
        try:
            canary = self._come_back(order, deadline, watch)
            self._move(State.RESUMED, facts=self._known_facts() | watch.facts(), canary=canary)
        except Exception as error:  # noqa: BLE001  told to the agent, which decides
            reason, detail = _explain(error, reasons.RESUME_FAILED)
            self._move(State.FAILED, reason=reason, detail=detail, facts=watch.facts())

    def _come_back(self, order: Order, deadline: Deadline, watch: _Watch) -> Canary | None:
        if not order.restored:
            with watch.step("open"):
                self._reopen(deadline)
            return None
        if self._open:
            raise HotstartError(
                reasons.RESUME_FAILED, "the worker is serving, so it cannot be a copy that just woke up"
            )
        canary = None
        with watch.step("identity"):
            self._engine.refresh_identity(order.identity, deadline)
        with watch.step("recreate_kv"):
            self._engine.recreate_kv(deadline)
        if order.canary is not None:
            with watch.step("canary"):
                canary = self._engine.canary(order.canary.prompt, CANARY_TOKENS_AT_RESTORE, deadline)
            if difference := canary_difference(order.canary, canary):
                raise HotstartError(reasons.CANARY_MISMATCH, difference)
        with watch.step("open"):
            self._engine.open(deadline)
            self._open = True
        return canary

    def _reopen(self, deadline: Deadline) -> None:
        """The same process serves on; does nothing if it serves already."""
        if not self._open:
            self._engine.recreate_kv(deadline)
            self._engine.open(deadline)
            self._open = True

    def _give_up_rest(self, rest: _Rest, why: str = "nobody ended the rest in time, so the worker did") -> None:
        if not rest.same_place(self._control.path):
            rest.restart()
            self._say("at rest without an order, and not where it came to rest: waiting on")
            return
        self._move(State.RESUMING)
        try:
            self._reopen(Deadline.after(ROLLBACK_GRACE_S, "the worker to serve again"))
            self._move(State.RESUMED, detail=why)
        except Exception as error:  # noqa: BLE001
            reason, detail = _explain(error, reasons.RESUME_FAILED)
            self._move(State.FAILED, reason=reason, detail=detail)

    # --- telling ----------------------------------------------------------------------------------------------------

    def _known_facts(self) -> Facts:
        return self._facts | self._engine.facts() | {"processes": len(self._engine.processes())}

    def _move(
        self,
        state: State,
        *,
        reason: Reason | None = None,
        detail: str = "",
        facts: Facts | None = None,
        canary: Canary | None = None,
    ) -> None:
        if not may_follow(self._state, state):
            raise HotstartError(reasons.INTERNAL, f"the worker cannot go from {self._state} to {state}")
        code = reason.code if reason else ""
        report = Report(state, self._nonce, self._engine.name, os.getpid(), code, detail[:4000], facts or {}, canary)
        if state is State.QUIESCED:  # nobody would end a rest that could not be told: then it did not happen
            self._control.report(report)
            self._untold = None
        self._state = state
        if state is not State.QUIESCED:
            self._report(report)
        if reason:
            self._say(f"{state}: {code}: {detail}")

    def _report(self, report: Report) -> None:
        """Tell the agent; where that is not possible (a full disk) the worker goes on, and tells it later."""
        self._untold = None
        try:
            self._control.report(report)
        except OSError as error:
            self._untold = report
            self._say(f"{report.state} cannot be reported yet: {error}")

    def _say(self, line: str) -> None:
        """One line in the worker's log; the same line is not repeated at every poll."""
        if line != self._told:
            self._told = line
            with contextlib.suppress(OSError):  # the log's reader is gone: no reason to stop
                print(f"hotstart: {' '.join(line.split())}", file=sys.stderr, flush=True)


class _Watch:
    """Seconds of each step."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._steps: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._steps[name] = time.monotonic() - began

    def facts(self) -> Facts:
        """``<step>_s`` for each step, and ``total_s``."""
        total = time.monotonic() - self._began
        return {f"{name}_s": round(seconds, 6) for name, seconds in [*self._steps.items(), ("total", total)]}


class _Rest:
    """One rest: where it began, and how long the process has really run since."""

    def __init__(self, limit_s: float, control: Path, *, held: bool = False) -> None:
        self._limit_s = limit_s
        self._held = held
        self._looked = 0.0
        self._ran_s = 0.0
        self._last = time.monotonic()
        self._place = _place(control)

    def restart(self) -> None:
        """Count from zero again."""
        self._ran_s = self._looked = 0.0

    def abandoned(self, control: ControlDirectory) -> bool:
        """True once the agent that wanted this rest, and promised to hold the control directory, has died."""
        if not self._held or self._ran_s < self._looked + _SLICE_S:
            return False
        self._looked = self._ran_s
        return self.same_place(control.path) and not control.held()

    def over(self) -> bool:
        """True once the limit is passed.  Called at each poll; each counts as at most _SLICE_S, whatever clocks say."""
        now = time.monotonic()
        self._ran_s += min(max(0.0, now - self._last), _SLICE_S)
        self._last = now
        return self._ran_s > self._limit_s

    def same_place(self, control: Path) -> bool:
        """False in a copy."""
        return self._place == _place(control)


def _place(control: Path) -> str:
    """What differs between two sandboxes, two boots and two machines."""
    directory = control.stat()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()} {directory.st_dev}:{directory.st_ino}"


def _explain(error: Exception, otherwise: Reason) -> tuple[Reason, str]:
    if isinstance(error, HotstartError):
        return error.reason, error.detail
    if isinstance(error, _Superseded):
        return reasons.INTERRUPTED, "another order came meanwhile"
    return otherwise, f"{type(error).__name__}: {error}"


def _nap(seconds: float) -> None:
    """Sleep for a relative time; ends early if the sleep was interrupted (a restore does that)."""
    _libc.usleep(int(seconds * 1e6))
