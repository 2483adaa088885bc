"""The words of the control protocol (pure): states, orders, nonces, and what may follow what.

Two small JSON files in the control directory are the whole conversation.  The agent replaces ``agent/order`` (an
:class:`Order`), the worker's leader process replaces ``worker/state`` (a :class:`Report`), each by rename.  Every order
carries a nonce of its operation and every report repeats the nonce it answers, so a stale file of an earlier attempt
never counts.  ``agent/root`` tells the supervisor which process to adopt, or to cold start (:class:`Adoption`).
docs/formats/control.md is the same in prose.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

ORDER_FILE = "order"
STATE_FILE = "state"
ADOPTION_FILE = "root"
LIMIT = 1 << 20
"""No control file is larger than this many bytes."""


class State(StrEnum):
    """Where the worker is."""

    STARTING = "starting"
    READY = "ready"
    QUIESCING = "quiescing"
    QUIESCED = "quiesced"
    RESUMING = "resuming"
    RESUMED = "resumed"
    FAILED = "failed"


SUCCESSORS: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.READY, State.FAILED}),
    State.READY: frozenset({State.QUIESCING, State.RESUMING}),
    State.QUIESCING: frozenset({State.QUIESCED, State.RESUMING, State.FAILED}),
    State.QUIESCED: frozenset({State.RESUMING}),
    State.RESUMING: frozenset({State.RESUMED, State.FAILED}),
    State.RESUMED: frozenset({State.QUIESCING, State.RESUMING}),
    State.FAILED: frozenset({State.RESUMING, State.QUIESCING}),
}
"""``failed`` after ``quiescing`` means: not captured, serving on.  ``failed`` after ``resuming`` means: not usable.
A RESUME to a worker that serves already (its QUIESCE was never seen, or was given up) is answered ``resumed``."""


class Verb(StrEnum):
    """What the agent may order."""

    QUIESCE = "quiesce"
    RESUME = "resume"


class ControlError(ValueError):
    """A control file that does not say anything valid."""


@dataclass(frozen=True)
class CanaryToken:
    """One greedy token: its id and its log-probability."""

    token_id: int
    logprob: float


@dataclass(frozen=True)
class Canary:
    """What the worker answered to a fixed prompt; compared after a restore."""

    prompt: str
    tokens: tuple[CanaryToken, ...]


@dataclass(frozen=True)
class Order:
    """Agent to worker.

    ``restored`` on RESUME: the worker has just been restored as a copy (refresh identity, compare ``canary``); without
    it the same process goes on after its capture.  ``identity`` gives a copy its new names (hostname, worker_id,
    address).
    """

    verb: Verb
    nonce: str
    restored: bool = False
    deadline_s: float = 60.0
    identity: dict[str, str] = field(default_factory=dict)
    canary: Canary | None = None
    held: bool = False
    """On QUIESCE: the agent keeps the control directory locked (flock) for as long as it wants the rest."""


@dataclass(frozen=True)
class Report:
    """Worker to agent.

    ``engine`` names the plugin.  ``reason``/``detail`` explain ``failed``.  ``facts`` carries sizes and measured
    seconds (numbers and strings only): ``kv_bytes``, ``kv_released_bytes``, ``running``, phase seconds.  ``canary`` is
    set on ``quiesced`` (recorded) and on ``resumed`` after a restore (what was computed).
    """

    state: State
    nonce: str
    engine: str
    pid: int = 0
    reason: str = ""
    detail: str = ""
    facts: dict[str, float | int | str] = field(default_factory=dict)
    canary: Canary | None = None


@dataclass(frozen=True)
class Adoption:
    """Agent to supervisor: adopt ``root_pid`` (in the sandbox's pid namespace), or cold start and say why."""

    nonce: str
    root_pid: int = 0
    cold_start_reason: str = ""


def may_follow(before: State, after: State) -> bool:
    """True if a worker may go from ``before`` to ``after``."""
    return after in SUCCESSORS[before]


def encode(message: Order | Report | Adoption) -> bytes:
    """The message as the bytes of its file.

    What has its default is left out: a worker that was captured by an older Hotstart refuses fields it does not know,
    and is not bothered with those that do not concern it.
    """
    plain = {f.name: f.default for f in fields(message)}
    told = {name: value for name, value in asdict(message).items() if value != plain[name]}
    return json.dumps(told, separators=(",", ":"), sort_keys=True).encode()


def decode_order(data: bytes) -> Order:
    """Parse ``agent/order``; raises ControlError."""
    raw = _object(data, {"verb", "nonce", "restored", "deadline_s", "identity", "canary", "held"})
    try:
        return Order(
            Verb(raw["verb"]),
            _text(raw["nonce"]),
            bool(raw.get("restored", False)),
            float(raw.get("deadline_s", 60.0)),
            {_text(k): _text(v) for k, v in raw.get("identity", {}).items()},
            _canary(raw.get("canary")),
            bool(raw.get("held", False)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ControlError(f"not a valid order: {error}") from None


def decode_report(data: bytes) -> Report:
    """Parse ``worker/state`` (hostile input: bounded, typed); raises ControlError."""
    raw = _object(data, {"state", "nonce", "engine", "pid", "reason", "detail", "facts", "canary"})
    try:
        facts = raw.get("facts", {})
        for key, value in facts.items():
            if not isinstance(key, str) or isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ControlError("facts hold numbers and strings only")
        return Report(
            State(raw["state"]),
            _text(raw["nonce"]),
            _text(raw["engine"]),
            int(raw.get("pid", 0)),
            _text(raw.get("reason", "")),
            _text(raw.get("detail", "")),
            facts,
            _canary(raw.get("canary")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ControlError(f"not a valid report: {error}") from None


def decode_adoption(data: bytes) -> Adoption:
    """Parse ``agent/root``; raises ControlError."""
    raw = _object(data, {"nonce", "root_pid", "cold_start_reason"})
    try:
        return Adoption(_text(raw["nonce"]), int(raw.get("root_pid", 0)), _text(raw.get("cold_start_reason", "")))
    except (KeyError, TypeError, ValueError) as error:
        raise ControlError(f"not a valid adoption: {error}") from None


def _object(data: bytes, known: set[str]) -> dict[str, Any]:
    if len(data) > LIMIT:
        raise ControlError("the file is too large")
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ControlError(f"not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ControlError("not an object")
    if unknown := set(raw) - known:
        raise ControlError(f"unknown fields {sorted(unknown)}")
    return raw


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ControlError("a string was expected")
    return value


def _canary(raw: object) -> Canary | None:
    if raw is None:
        return None
    if not isinstance(raw, dict) or set(raw) != {"prompt", "tokens"} or not isinstance(raw["tokens"], list):
        raise ControlError("not a valid canary")
    tokens = tuple(CanaryToken(int(t["token_id"]), float(t["logprob"])) for t in raw["tokens"])
    return Canary(_text(raw["prompt"]), tokens)
