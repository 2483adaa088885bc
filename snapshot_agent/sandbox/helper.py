"""The agent's side of a helper process that enters a sandbox (see ``enter``): start early, plan later, one result."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hotstart
from hotstart import reasons
from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.linux import procfs
from hotstart.reasons import Reason
from hotstart.snapshot_agent.sandbox.enter import MAX_FDS, MAX_MESSAGE

SITE = str(Path(hotstart.__file__).resolve().parent.parent)
_CLEAN_UP_SECONDS = 5.0
NAMESPACES = ("mnt", "pid", "ipc", "uts", "net", "cgroup")


class Helper:
    """One helper process.  ``module`` must have a ``main()`` that calls ``enter.main``.

    Start-up (interpreter, imports) runs while the caller prepares the plan.  The helper and the program it starts are
    killed by ``close``; use it as a context manager.
    """

    def __init__(self, module: str, tried: str) -> None:
        self.tried = tried
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        bootstrap = f"import sys; sys.path.insert(0, {SITE!r}); from {module} import main; main()"
        with theirs:
            try:
                # -I -S: the user's environment and site-packages have no say in a root process, and start-up is short.
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", bootstrap, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # it tells errors as messages; a killed one must not write on a terminal
                    start_new_session=True,  # Ctrl-C must reach the agent alone, never CRIU with a parasite
                    env={},
                )
            except BaseException:
                ours.close()
                raise
        self._channel = ours
        self.spans: list[tuple[str, float, float]] = []
        """Steps done inside, with monotonic start and end."""

    def start(
        self, plan: dict[str, Any], fds: Mapping[str, int], deadline: Deadline
    ) -> tuple[socket.socket, dict[str, int]]:
        """Send the plan; returns the program's RPC socket and the descriptor numbers inside, after all steps."""
        self.send(plan, fds)
        while True:
            message, received = self._receive(deadline)
            if "ready" in message and received:
                for extra in received[1:]:
                    os.close(extra)
                return socket.socket(fileno=received[0]), message["ready"]
            for extra in received:
                os.close(extra)

    def send(self, plan: dict[str, Any], fds: Mapping[str, int]) -> None:
        """Send the plan alone (for plans without a program; follow with ``finish``)."""
        names = list(fds)
        message = json.dumps(plan | {"fds": names}).encode()
        if len(names) > MAX_FDS or len(message) > MAX_MESSAGE:
            raise ValueError("the plan is too large for one message")
        socket.send_fds(self._channel, [message], [fds[n] for n in names])

    def finish(self, deadline: Deadline) -> int:
        """Wait until the helper has ended; returns its exit status."""
        with contextlib.suppress(_Ended):
            while True:
                _message, received = self._receive(deadline)
                for extra in received:
                    os.close(extra)
        try:
            return self._process.wait(deadline.remaining())
        except subprocess.TimeoutExpired:
            deadline.check()
            raise

    def abandon(self) -> None:
        """Kill the program, and let the helper clean up behind it; safe before the program got its request.

        Later it is the last resort for a CRIU that neither answers nor ends.
        """
        self._channel.close()
        deadline = Deadline.after(_CLEAN_UP_SECONDS, "the helper to end")
        while self._process.poll() is None and not deadline.expired():
            with contextlib.suppress(OSError):
                for inside in procfs.children(self._process.pid):
                    for program in procfs.children(inside):
                        os.kill(program, signal.SIGKILL)
            time.sleep(deadline.sooner(0.002))
        self.close()

    def close(self) -> None:
        """End the helper if it still runs; its child dies with it (PDEATHSIG)."""
        self._channel.close()
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _receive(self, deadline: Deadline) -> tuple[dict[str, Any], Sequence[int]]:
        ready, _, _ = select.select([self._channel], [], [], deadline.remaining())
        if not ready:
            deadline.check()
        data, fds, _flags, _address = socket.recv_fds(self._channel, MAX_MESSAGE, MAX_FDS)
        if not data:
            raise _Ended
        message: dict[str, Any] = json.loads(data)
        if "step" in message and "start" in message:
            self.spans.append((message["step"], message["start"], message["end"]))
        if "error" in message:
            raise self._error(message)
        return message, fds

    def _error(self, message: dict[str, Any]) -> HotstartError:
        reason: Reason = reasons.REGISTRY.get(message.get("reason", ""), reasons.SANDBOX_START)
        return HotstartError(reason, f"{message['error']} (step {message['step']})", tried=self.tried)


class _Ended(Exception):
    """The helper closed its end of the channel."""


def open_namespaces(pid: int) -> dict[str, int]:
    """Descriptors of the namespaces of ``pid`` under the names that ``enter`` knows; the caller closes them.

    Raises OSError when the process is gone.
    """
    fds: dict[str, int] = {}
    try:
        for name in NAMESPACES:
            with contextlib.suppress(FileNotFoundError):
                fds[f"ns:{name}"] = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except BaseException:
        for fd in fds.values():
            os.close(fd)
        raise
    return fds
