"""The vLLM workers that are measured: one command for all of them, as a user would type it."""

from __future__ import annotations

import os
from pathlib import Path

from hotstart.snapshot_agent.sandbox.contract import SandboxSpec

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "Water boils at a temperature of",
)
QUESTION = "What is the capital of France?"
TOKENS = 24
VLLM_PYTHON_ENV = "HOTSTART_VLLM_PYTHON"
MODELS_ENV = "HOTSTART_MODELS"


def vllm_python() -> str:
    """The interpreter of the vLLM environment (set-up exports it)."""
    return os.environ[VLLM_PYTHON_ENV]


def model_path(model: str) -> Path:
    """The Hugging Face directory of a model that set-up has made."""
    return Path(os.environ[MODELS_ENV]) / model


def _dtype(model: str) -> str:
    """bfloat16 (the models' own), except for the model that speaks English where vLLM 0.32 garbles it: on AMX.

    SmolLM2 answers "What is the capital of France?" in broken French there, from a cold start, and "Paris" in float16.
    """
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    garbled = model == "smollm2" and {"amx_tile", "avx512_fp16"} <= set(flags)
    return "float16" if garbled else "bfloat16"


def vllm_spec(name: str, model: str, *, engine: str = "auto") -> SandboxSpec:
    """``hotstart run -- python -m vllm.entrypoints.openai.api_server …`` with what a CPU of few cores needs."""
    command = (
        vllm_python(),
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model_path(model)), "--served-model-name", "m"),
        *("--host", "0.0.0.0", "--port", "8000"),
        *("--max-model-len", "2048", "--enforce-eager", "--dtype", _dtype(model)),
    )
    env = {
        "PATH": f"{Path(vllm_python()).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
        # What a worker without our launcher needs to be restored at another address at all:
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "GOMP_SPINCOUNT": "1001",  # as our launcher sets it: all three are measured with the same
        "PYTHONUNBUFFERED": "1",
    }
    return SandboxSpec(name=name, command=command, env=env, cwd="/", engine=engine)
