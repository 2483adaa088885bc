"""The vLLM plugin where there is no vLLM: it stays out of the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotstart.hooks.engines.vllm import kv

REGISTER = "import sys\nfrom hotstart.hooks.engines.vllm.plugin import register\nregister()\n"


def _register(after: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", REGISTER + after]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


@pytest.mark.parametrize("environment", [{}, {"HOTSTART_CONTROL": "/nowhere", "HOTSTART_ENGINE": "none"}])
def test_outside_a_sandbox_it_does_nothing(environment: dict[str, str]) -> None:
    done = _register("print(sorted(n for n in sys.modules if n.startswith('hotstart.hooks.engines')))", **environment)
    assert done.stderr == ""
    assert done.stdout.strip() == str(
        ["hotstart.hooks.engines", "hotstart.hooks.engines.vllm", "hotstart.hooks.engines.vllm.plugin"]
    )


def test_what_goes_wrong_is_said_in_one_line(tmp_path: Path) -> None:
    done = _register("print('runs on')", HOTSTART_CONTROL=str(tmp_path))
    assert done.stdout == "runs on\n"
    assert done.stderr.startswith("hotstart: the vLLM plugin is off: ")
    assert done.stderr.count("\n") == 1


class _Storage:
    def __init__(self, address: int, length: int) -> None:
        self.address, self.length = address, length

    def data_ptr(self) -> int:
        return self.address

    def nbytes(self) -> int:
        return self.length


class _Tensor:
    def __init__(self, storage: _Storage, device: str = "cpu") -> None:
        self.storage = storage
        self.device = SimpleNamespace(type=device)

    def untyped_storage(self) -> _Storage:
        return self.storage


def test_a_storage_that_layers_share_counts_once() -> None:
    shared, own = _Storage(4096, 100), _Storage(8192, 50)
    nested = [_Tensor(shared), (_Tensor(shared), {"k": _Tensor(own), "none": None}), []]
    assert kv.storages(nested) == {4096: 100, 8192: 50}


def test_memory_of_a_device_is_never_touched() -> None:
    with pytest.raises(ValueError, match="own memory"):
        kv.storages([_Tensor(_Storage(4096, 100), "cuda")])


def test_no_log_probabilities_are_asked_for_where_the_engine_could_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine process would die at the capture, in an image without a compiler."""
    from hotstart.hooks.engines.vllm import canary

    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    canary.can_tell_logprobs.cache_clear()
    try:
        assert not canary.can_tell_logprobs()
        monkeypatch.undo()
        assert not canary.can_tell_logprobs(), "a copy computes as its source did"
    finally:
        canary.can_tell_logprobs.cache_clear()
