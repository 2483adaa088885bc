"""The worker's environment (pure): what makes it capturable, set only where the user has not set it."""

from __future__ import annotations

from hotstart.hooks.control.start import SITE_PATH
from hotstart.names import CONTROL_ENV, CONTROL_PATH, ENGINE_ENV

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CAPTURABLE: dict[str, str] = {
    # Reports usage from a thread through a connection to the outside, which cannot be captured.
    "VLLM_NO_USAGE_STATS": "1",
    # hf-xet keeps a log below its cache open, which is gone at the restore.
    "HF_HUB_DISABLE_XET": "1",
    # A forked worker shares its parent's locks and, on a GPU, its context; a spawned one has only its own.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Sockets between the worker's processes must not carry the sandbox's address: a copy has another one.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TP_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    # The watchdog takes the time in a snapshot for a hang and kills the process (criu#2980).
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # More OpenMP threads than cores (several copies on one node) must not spin against each other: with libgomp's
    # default of 300000 rounds a token takes seconds then.  docs/decisions/0003 has what it costs a single worker.
    "GOMP_SPINCOUNT": "1001",
    # NVLS unbind errors poison the context after a restore (nccl#2115).
    "NCCL_NVLS_ENABLE": "0",
    # Host memory through cuMem hangs NCCL's own checkpoint (nccl#2350).
    "NCCL_CUMEM_HOST_ENABLE": "0",
    # A thread that listens and remembers pids and addresses of before (dynamo#7539).
    "NCCL_RAS_ENABLE": "0",
}


def environment(env: dict[str, str], engine: str) -> dict[str, str]:
    """The environment of the user's command.

    ``engine`` none: the program is captured as it stands, so it gets nothing that a hook would need.
    """
    result = {"PATH": PATH, **env, ENGINE_ENV: env.get(ENGINE_ENV, engine)}
    if result[ENGINE_ENV] == "none":
        return result
    for name, value in CAPTURABLE.items():
        result.setdefault(name, value)
    if plugins := result.get("VLLM_PLUGINS"):  # an allow-list: without our name in it the hooks would stay out
        result["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*plugins.split(","), "hotstart"]))
    result[CONTROL_ENV] = CONTROL_PATH
    # Appended: whatever the user put there is found first.
    result["PYTHONPATH"] = ":".join(part for part in (env.get("PYTHONPATH", ""), SITE_PATH) if part)
    return result
