"""The engine contract: what one inference engine must be able to do to be captured and to come back.

A new engine (SGLang, TensorRT-LLM) is one more implementation of :class:`Engine`; the state machine that calls it, the
audit and the conversation with the agent are engine-neutral (``participant``).  The calls come from one thread, in this
order::

    capture   close → running … 0 → canary → release_kv → settle        (audit, then "quiesced")
    resume    [restored: refresh_identity] → recreate_kv → [restored: canary] → open

``open`` may also come after any of the capture calls, when the capture is given up; it must then undo them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hotstart.clock import Deadline
from hotstart.hooks.control.protocol import Canary

CANARY_PROMPT = "The three primary colours are red, yellow and"
CANARY_TOKENS_AT_CAPTURE = 4
CANARY_TOKENS_AT_RESTORE = 1
"""One token is one forward pass: it reads every weight, and costs what the first request would have cost anyway."""
LOGPROB_TOLERANCE = 1e-3
"""Largest difference of a log-probability that is still the same computation (natural logarithm)."""

Facts = dict[str, float | int | str]


@dataclass(frozen=True)
class KvRelease:
    """What became of the KV cache: its size, and how much physical memory was given back, in bytes."""

    kv_bytes: int
    released_bytes: int


class Engine(Protocol):
    """One engine, driven by the participant thread of the worker's leader process.

    Every call may raise HotstartError with its own reason, or anything else (told as ``quiesce-failed`` or
    ``resume-failed``).  Calls that wait take a Deadline and raise it.
    """

    @property
    def name(self) -> str:
        """``vllm``, ``plain``…: stands in reports and manifests."""

    def processes(self) -> Sequence[int]:
        """Pids of the worker's processes, the caller's own included, as the caller sees them."""

    def facts(self) -> Facts:
        """Sizes and versions worth knowing (``weights_bytes``, ``engine_version``); cheap."""

    def close(self, deadline: Deadline) -> None:
        """Stop admitting requests: what arrives from now on waits, nothing is refused.  Returns at once."""

    def running(self) -> int:
        """Requests not answered yet, and client connections not closed yet.  Polled until 0."""

    def canary(self, prompt: str, count: int, deadline: Deadline) -> Canary:
        """``count`` greedy tokens after ``prompt``, computed by the engine itself while it is closed to its users."""

    def release_kv(self, deadline: Deadline) -> KvRelease:
        """Forget the KV cache: caches that point into it first, then its physical memory.  Addresses stay."""

    def settle(self, deadline: Deadline) -> None:
        """Give back what is not needed after a restore: garbage, free heap."""

    def refresh_identity(self, identity: Mapping[str, str], deadline: Deadline) -> None:
        """Renew, in every process of the worker, all that two copies must not share (seeds, ids, host name)."""

    def recreate_kv(self, deadline: Deadline) -> None:
        """Make the KV cache usable again at its old addresses."""

    def open(self, deadline: Deadline) -> None:
        """Admit requests again, those that waited first.  Idempotent."""


def canary_difference(recorded: Canary, computed: Canary) -> str:
    """Why two canaries are not the same computation, or "" if they agree in all tokens that both have (pure)."""
    if not recorded.tokens or not computed.tokens:
        return "no token to compare"
    for place, (was, now) in enumerate(zip(recorded.tokens, computed.tokens, strict=False)):
        if was.token_id != now.token_id:
            return f"token {place} is {now.token_id}, at capture it was {was.token_id}"
        if not abs(was.logprob - now.logprob) <= LOGPROB_TOLERANCE:
            return f"log-probability of token {place} is {now.logprob:.6f}, at capture it was {was.logprob:.6f}"
    return ""
