"""What EngineCore and Worker processes do on behalf of the leader: methods that the plugin adds to their classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotstart.hooks.engines import pages
from hotstart.hooks.engines.vllm import compat, identity, kv

RELEASE_KV = "hotstart_release_kv"
SETTLE = "hotstart_settle"
REFRESH = "hotstart_refresh"
MEASURE = "hotstart_measure"


def install() -> None:
    """Add the methods to the classes that this process has loaded."""
    compat.add_engine_methods(_CORE)
    compat.add_worker_methods(_WORKER)


def _workers(core: Any, method: str, *args: object) -> list[Any]:
    # Without a process of its own (VLLM_ENABLE_V1_MULTIPROCESSING=0) the Worker was loaded after register was called.
    compat.add_worker_methods(_WORKER)
    return compat.call_workers(core, method, *args)


def _core_release_kv(core: Any) -> list[int]:
    """[bytes of the KV caches, bytes given back] of all Workers."""
    each = _workers(core, RELEASE_KV)
    return [sum(total for total, _ in each), sum(released for _, released in each)]


def _core_settle(core: Any) -> None:
    _workers(core, SETTLE)
    _settle(core)


def _core_refresh(core: Any, names: dict[str, str]) -> None:
    _workers(core, REFRESH, names)
    _refresh(core, names)


def _core_measure(core: Any) -> int:
    return sum(_workers(core, MEASURE))


def _refresh(holder: Any, names: dict[str, str]) -> None:
    identity.refresh_process(names)
    compat.set_instance_id(holder, names["instance_id"])


def _settle(_: Any) -> None:
    pages.settle_process()


_CORE: dict[str, Callable[..., object]] = {
    RELEASE_KV: _core_release_kv,
    SETTLE: _core_settle,
    REFRESH: _core_refresh,
    MEASURE: _core_measure,
}
_WORKER: dict[str, Callable[..., object]] = {
    RELEASE_KV: kv.release,
    SETTLE: _settle,
    REFRESH: _refresh,
    MEASURE: kv.weights_bytes,
}
