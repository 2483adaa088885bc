"""The KV cache in a Worker process: which memory it is, and how it is given back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hotstart.hooks.engines import pages
from hotstart.hooks.engines.vllm import compat


def storages(found: object) -> dict[int, int]:
    """Address → bytes of the storages behind tensors in nested lists, tuples and mappings, each once.

    All layers may share one storage, or keys and values of a layer; views of it must not count twice.
    """
    return dict(_storages(found))


def _storages(found: object) -> Iterator[tuple[int, int]]:
    if isinstance(found, Mapping):
        found = list(found.values())
    if isinstance(found, list | tuple):
        for each in found:
            yield from _storages(each)
    elif storage := getattr(found, "untyped_storage", None):
        if found.device.type != "cpu":  # type: ignore[attr-defined]
            raise ValueError("this tensor is not in the process's own memory")
        yield storage().data_ptr(), storage().nbytes()


def release(worker: Any) -> tuple[int, int]:
    """Give back the KV cache's memory; returns (bytes of the cache, bytes given back).

    The caller sees to it that nothing is running and that no prefix cache points into it.
    """
    found = storages(compat.kv_tensors(worker))
    return sum(found.values()), sum(pages.release(address, length) for address, length in found.items())


def weights_bytes(worker: Any) -> int:
    """Memory of the model: parameters, buffers, and the packed copies that the CPU kernels compute with."""
    model = compat.model(worker)
    plain = storages([*model.parameters(), *model.buffers()])
    packed = sum(n * k for module in model.modules() for n, k in compat.packed_weights(module))
    return sum(plain.values()) + packed * compat.element_bytes(worker)
