"""The entry point ``vllm.general_plugins``: vLLM calls ``register`` in each of its processes.

Outside a sandbox it does nothing.  Inside it must never break vLLM: whatever goes wrong here is said in one line, and
the worker runs on as if there were no plugin.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from hotstart import reasons
from hotstart.errors import HotstartError
from hotstart.names import CONTROL_ENV, ENGINE_ENV


def register() -> None:
    """Attach this process: Workers and EngineCore learn the plugin's calls, the API server talks to the agent."""
    control = os.environ.get(CONTROL_ENV)
    if not control or os.environ.get(ENGINE_ENV) == "none":
        return
    try:
        _attach(Path(control))
    except Exception as error:  # noqa: BLE001  see above
        _say(f"the vLLM plugin is off: {error}")


def _attach(control: Path) -> None:
    from hotstart.hooks.engines.vllm import compat, remote

    try:
        compat.check_version()
    except HotstartError as error:
        if compat.is_leader():
            _report_unsupported(control, error.detail)
        raise
    remote.install()
    if compat.is_leader():
        _lead(control)


def _lead(control: Path) -> None:
    import asyncio

    from hotstart.hooks.control.directory import ControlDirectory
    from hotstart.hooks.engines.participant import Participant
    from hotstart.hooks.engines.vllm import compat
    from hotstart.hooks.engines.vllm.engine import VllmEngine

    engine = VllmEngine()
    participant = Participant(engine, ControlDirectory(control))
    participant.start()

    def started(server: Any) -> None:
        try:
            if compat.engine_client(server) is not None:
                engine.bind(server, asyncio.get_running_loop())
                participant.ready()
        except Exception as error:  # noqa: BLE001  see above
            _say(f"the vLLM plugin is off: {error}")

    compat.on_server_started(started)


def _report_unsupported(control: Path, detail: str) -> None:
    """Let the agent know why there will never be a ``ready``."""
    from hotstart.hooks.control.directory import ControlDirectory
    from hotstart.hooks.control.protocol import Report, State
    from hotstart.hooks.engines.participant import BOOT_NONCE

    reason = reasons.ENGINE_UNSUPPORTED
    report = Report(State.FAILED, BOOT_NONCE, "vllm", os.getpid(), reason.code, detail)
    ControlDirectory(control).report(report)


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        print(f"hotstart: {' '.join(line.split())}", file=sys.stderr, flush=True)
