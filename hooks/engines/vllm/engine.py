"""The engine contract for vLLM: one API server, its EngineCore and its Workers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from hotstart import audit, reasons
from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.hooks.control.protocol import Canary
from hotstart.hooks.engines import pages
from hotstart.hooks.engines.contract import Facts, KvRelease
from hotstart.hooks.engines.vllm import canary, compat, identity, remote
from hotstart.hooks.engines.vllm.pause import FrontDoor

T = TypeVar("T")


class VllmEngine:
    """Lives in the API server process; ``bind`` gives it its engine once the server listens.

    The participant's thread calls it; what touches vLLM runs on vLLM's event loop.
    """

    def __init__(self) -> None:
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._door: FrontDoor | None = None
        self._paused = False
        self._weights_bytes = 0

    def bind(self, server: Any, loop: asyncio.AbstractEventLoop) -> None:
        """``server`` is the uvicorn server, ``loop`` the event loop that it runs on."""
        self._client = compat.engine_client(server)
        self._loop = loop
        self._door = FrontDoor(server)

    @property
    def name(self) -> str:
        """See contract.Engine."""
        return "vllm"

    def processes(self) -> Sequence[int]:
        """See contract.Engine."""
        return audit.tree(os.getpid())

    def facts(self) -> Facts:
        """See contract.Engine."""
        known: Facts = {"engine_version": compat.version()}
        if self._client is not None:
            if not self._weights_bytes:
                self._weights_bytes = self._engine(remote.MEASURE, Deadline.after(10.0, "the size of the weights"))
            known["weights_bytes"] = self._weights_bytes
            known["model"] = str(self._client.model_config.model)
        return known

    def close(self, deadline: Deadline) -> None:
        """See contract.Engine."""
        if problem := compat.misfit(self._client):
            raise HotstartError(reasons.ENGINE_UNSUPPORTED, problem)
        self._on_loop(self._front_door.close(), deadline)

    def running(self) -> int:
        """See contract.Engine."""
        connections = self._on_loop(self._front_door.sweep(), Deadline.after(10.0, "the API server to react"))
        unfinished: int = self._client.get_num_unfinished_requests()
        return max(connections, unfinished)

    def canary(self, prompt: str, count: int, deadline: Deadline) -> Canary:
        """See contract.Engine."""
        return self._on_loop(canary.compute(self._client, prompt, count), deadline)

    def release_kv(self, deadline: Deadline) -> KvRelease:
        """See contract.Engine.  The pause clears all caches that point into the KV cache."""
        self._paused = True
        self._on_loop(self._client.pause_generation(mode="wait", clear_cache=True), deadline)
        self._on_loop(compat.clear_frontend_caches(self._client), deadline)
        return KvRelease(*self._engine(remote.RELEASE_KV, deadline))

    def settle(self, deadline: Deadline) -> None:
        """See contract.Engine."""
        self._engine(remote.SETTLE, deadline)
        pages.settle_process()

    def refresh_identity(self, names: Mapping[str, str], deadline: Deadline) -> None:
        """See contract.Engine."""
        shared = {**names, "instance_id": names.get("worker_id") or secrets.token_hex(4)}
        self._engine(remote.REFRESH, deadline, shared)
        identity.refresh_process(shared)
        compat.set_instance_id(self._client, shared["instance_id"])

    def recreate_kv(self, deadline: Deadline) -> None:
        """The fresh mapping is there already; the scheduler may use it again."""
        if self._paused:
            self._on_loop(self._client.resume_generation(), deadline)
            self._paused = False

    def open(self, deadline: Deadline) -> None:
        """See contract.Engine."""
        self._on_loop(self._front_door.open(), deadline)

    @property
    def _front_door(self) -> FrontDoor:
        assert self._door is not None, "bind was not called"
        return self._door

    def _engine(self, method: str, deadline: Deadline, *args: object) -> Any:
        return self._on_loop(compat.call_engine(self._client, method, *args), deadline)

    def _on_loop(self, work: Awaitable[T], deadline: Deadline) -> T:
        """Run ``work`` on vLLM's event loop and wait for it; raises ``deadline``."""
        assert self._loop is not None, "bind was not called"
        future = asyncio.run_coroutine_threadsafe(_await(work), self._loop)
        try:
            return future.result(deadline.remaining())
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise HotstartError(reasons.DEADLINE, f"gave up waiting for {deadline.waiting_for}") from None


async def _await(work: Awaitable[T]) -> T:
    return await work
