"""The one module that touches private names of vLLM (and of uvicorn under it); written against vLLM 0.32.

Everything else in this package speaks to the engine through these functions and through vLLM's public classes.  A new
version of vLLM is admitted here after the integration tests have passed on it.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from hotstart import reasons
from hotstart.errors import HotstartError

SUPPORTED = ("0.32.",)


def version() -> str:
    """vLLM's version."""
    import vllm

    return str(vllm.__version__)


def check_version() -> None:
    """Raise ``engine-unsupported`` unless the plugin knows this version of vLLM."""
    found = version()
    if not found.startswith(SUPPORTED):
        raise HotstartError(
            reasons.ENGINE_UNSUPPORTED, f"vLLM {found}; the plugin knows {', '.join(s + 'x' for s in SUPPORTED)}"
        )


def is_leader() -> bool:
    """True in the process that was started as the worker's command: not in its children, not in its short helpers.

    (vLLM asks what a model can do in a process of its own, ``python -m vllm.model_executor.models.registry``.)
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    helper = spec is not None and str(spec.name).startswith("vllm.model_executor.")
    return multiprocessing.parent_process() is None and not helper


def on_server_started(callback: Callable[[Any], None]) -> None:
    """Have ``callback(server)`` called on the event loop each time an uvicorn server has begun to listen."""
    import uvicorn

    startup = uvicorn.Server.startup

    async def startup_and_tell(self: Any, sockets: Any = None) -> None:
        await startup(self, sockets=sockets)
        if self.started:
            callback(self)

    uvicorn.Server.startup = startup_and_tell


def engine_client(server: Any) -> Any:
    """The AsyncLLM behind an uvicorn server, or None if it serves something else."""
    state = getattr(server.config.app, "state", None)
    return getattr(state, "engine_client", None)


def misfit(client: Any) -> str:
    """Why this configuration cannot be brought to rest and copied, or ""."""
    config = client.vllm_config
    if (device := config.device_config.device_type) != "cpu":
        return f"the model is on {device}; this build captures CPU workers"
    if (runner := config.model_config.runner_type) != "generate":
        return f"the model does not generate text (runner {runner}), so there is no canary"
    if client._client_count > 1:
        return "several API servers share the engine (--api-server-count)"
    if config.parallel_config.data_parallel_size > 1:
        return "data parallelism (--data-parallel-size)"
    # Copies would share the engine id under which their peers know them, and its connections.
    for option in ("kv_transfer_config", "ec_transfer_config", "kv_events_config"):
        if getattr(config, option, None) is not None:
            return f"{option} is set"
    return ""


async def call_engine(client: Any, method: str, *args: object) -> Any:
    """Call a method of EngineCore, in its process."""
    return await client.engine_core.call_utility_async(method, *args)


def add_engine_methods(methods: Mapping[str, Callable[..., object]]) -> None:
    """Make functions callable through ``call_engine``; their first argument is the EngineCore."""
    if module := sys.modules.get("vllm.v1.engine.core"):
        for name, function in methods.items():
            setattr(module.EngineCore, name, function)


def call_workers(core: Any, method: str, *args: object) -> list[Any]:
    """In EngineCore: call a method of every Worker."""
    return list(core.collective_rpc(method, args=args))


def add_worker_methods(methods: Mapping[str, Callable[..., object]]) -> None:
    """Make functions callable through ``call_workers``; their first argument is the Worker."""
    if module := sys.modules.get("vllm.v1.worker.worker_base"):
        for name, function in methods.items():
            setattr(module.WorkerBase, name, function)


def clear_frontend_caches(client: Any) -> Awaitable[None]:
    """Forget preprocessed images and the like in the API server (EngineCore's twin is cleared when it pauses)."""
    done: Awaitable[None] = client.renderer.clear_mm_cache_async()
    return done


def reset_prefix_cache(client: Any) -> Awaitable[bool]:
    """Forget which prompts are in the KV cache."""
    done: Awaitable[bool] = client.reset_prefix_cache()
    return done


def kv_tensors(worker: Any) -> object:
    """The KV cache of a Worker: tensors in nested lists and mappings."""
    return worker.model_runner.kv_caches


def model(worker: Any) -> Any:
    """The torch module of a Worker."""
    return worker.model_runner.model


def packed_weights(module: Any) -> Iterator[tuple[int, int]]:
    """(rows, columns) of the oneDNN copies that a linear layer on the CPU computes with.

    They are the only copy (the layer's own parameter is emptied) and torch cannot see them: the layer calls a lambda
    that holds a handler with its dimensions.
    """
    for cell in getattr(getattr(module, "cpu_linear", None), "__closure__", None) or ():
        handler = cell.cell_contents
        if type(handler).__name__ == "CPUDNNLGEMMHandler":
            yield handler.n, handler.k


def element_bytes(worker: Any) -> int:
    """Bytes of one element of the model's data type."""
    size: int = worker.model_config.dtype.itemsize
    return size


def set_instance_id(holder: Any, name: str) -> None:
    """Rename the instance in the configuration that AsyncLLM, EngineCore and Worker each hold."""
    holder.vllm_config.instance_id = name
