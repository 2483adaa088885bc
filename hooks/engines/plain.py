"""The second engine: a plain Python HTTP worker, small enough for fast tests and complete enough to be wrong.

``python -m hotstart.hooks.engines.plain --port 8000`` answers POST /v1/completions in OpenAI's shape.  Its tokens are
computed from the prompt, from a table and from ballast in memory, and pass through a "KV cache", so that memory that
came back wrong gives wrong tokens.  ``attach`` makes any ``ThreadingHTTPServer`` capturable in the same way.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import math
import mmap
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

from hotstart import __version__, audit
from hotstart.clock import Deadline
from hotstart.hooks.control.directory import ControlDirectory
from hotstart.hooks.control.protocol import Canary, CanaryToken
from hotstart.hooks.engines import pages
from hotstart.hooks.engines.contract import Facts, KvRelease
from hotstart.hooks.engines.gate import Gate, guard
from hotstart.hooks.engines.participant import Participant
from hotstart.names import CONTROL_ENV, ENGINE_ENV

PAGE = mmap.PAGESIZE
VOCABULARY = 50_000
_KV_SLOT = struct.Struct("<Q")


class Worker(Protocol):
    """What ``attach`` needs of the program that answers the requests."""

    def canary(self, prompt: str, count: int) -> Canary:
        """A deterministic function of ``prompt`` that reads what the program's answers depend on."""

    def release_kv(self) -> KvRelease:
        """Give back memory that is worth nothing between two requests."""

    def refresh_identity(self, identity: Mapping[str, str]) -> None:
        """Renew what two copies must not share."""

    def facts(self) -> Facts:
        """Sizes worth knowing."""


class PlainEngine:
    """The engine contract for one process that serves HTTP with threads."""

    def __init__(self, worker: Worker, gate: Gate) -> None:
        self._worker = worker
        self._gate = gate

    @property
    def name(self) -> str:
        """See contract.Engine."""
        return "plain"

    def processes(self) -> Sequence[int]:
        """See contract.Engine."""
        return audit.tree(os.getpid())

    def facts(self) -> Facts:
        """See contract.Engine."""
        return {"engine_version": __version__, **self._worker.facts()}

    def close(self, deadline: Deadline) -> None:  # noqa: ARG002
        """See contract.Engine."""
        self._gate.close()

    def running(self) -> int:
        """See contract.Engine."""
        return self._gate.inside()

    def canary(self, prompt: str, count: int, deadline: Deadline) -> Canary:  # noqa: ARG002
        """See contract.Engine."""
        return self._worker.canary(prompt, count)

    def release_kv(self, deadline: Deadline) -> KvRelease:  # noqa: ARG002
        """See contract.Engine."""
        return self._worker.release_kv()

    def settle(self, deadline: Deadline) -> None:  # noqa: ARG002
        """See contract.Engine."""
        pages.settle_process()

    def refresh_identity(self, identity: Mapping[str, str], deadline: Deadline) -> None:  # noqa: ARG002
        """See contract.Engine."""
        if name := identity.get("hostname"):
            os.environ["HOSTNAME"] = name
        random.seed()
        self._worker.refresh_identity(identity)

    def recreate_kv(self, deadline: Deadline) -> None:
        """Nothing to do: the fresh mapping is there already."""

    def open(self, deadline: Deadline) -> None:  # noqa: ARG002
        """See contract.Engine."""
        self._gate.open()


def attach(server: ThreadingHTTPServer, worker: Worker) -> Participant | None:
    """Make ``server`` capturable; call it before it serves, and ``ready()`` of what it returns once it does.

    Returns None outside a sandbox (HOTSTART_CONTROL is not set) or when plugins are turned off (HOTSTART_ENGINE=none).
    """
    control = os.environ.get(CONTROL_ENV)
    if not control or os.environ.get(ENGINE_ENV) == "none":
        return None
    participant = Participant(PlainEngine(worker, guard(server)), ControlDirectory(Path(control)))
    participant.start()
    return participant


class TableWorker:
    """The tiny worker: its memory is a table, ballast of distinct pages, and a KV cache, written before it is read."""

    def __init__(self, ballast_bytes: int, kv_bytes: int, token_seconds: float) -> None:
        self.table = hashlib.shake_128(b"hotstart table").digest(1 << 16)
        self.ballast = _ballast(ballast_bytes)
        self.kv = mmap.mmap(-1, max(PAGE, kv_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.kv.write(b"\x5a" * len(self.kv))
        self.token_seconds = token_seconds
        self.lock = threading.Lock()
        self.requests = 0
        self.refresh_identity({})

    def generate(self, prompt: str, count: int, temperature: float = 0.0) -> list[CanaryToken]:
        """``count`` tokens; greedy ones depend on prompt, table and ballast alone."""
        state = hashlib.blake2b(prompt.encode(), digest_size=8).digest()
        tokens = []
        with self.lock:
            for position in range(count):
                if self.token_seconds:
                    time.sleep(self.token_seconds)
                number = int.from_bytes(state, "little")
                slot = position * _KV_SLOT.size % (len(self.kv) - _KV_SLOT.size)
                _KV_SLOT.pack_into(self.kv, slot, number)
                if temperature > 0:
                    number ^= random.getrandbits(64)
                place = number % (len(self.table) - 64)
                page = number % (len(self.ballast) // PAGE) * PAGE if self.ballast else 0
                mixed = hashlib.blake2b(self.table[place : place + 64], digest_size=8)
                mixed.update(self.ballast[page : page + PAGE])
                mixed.update(self.kv[slot : slot + _KV_SLOT.size])
                state = mixed.digest()
                token = int.from_bytes(state, "big")
                tokens.append(CanaryToken(token % VOCABULARY, -math.log1p(token % 1000 / 100)))
        return tokens

    def canary(self, prompt: str, count: int) -> Canary:
        """See Worker."""
        return Canary(prompt, tuple(self.generate(prompt, count)))

    def release_kv(self) -> KvRelease:
        """See Worker."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.kv))
        return KvRelease(len(self.kv), pages.release(address, len(self.kv)))

    def refresh_identity(self, identity: Mapping[str, str]) -> None:
        """See Worker."""
        self.worker_id = identity.get("worker_id") or random.randbytes(6).hex()  # noqa: S311  a name, no secret
        self.number = random.getrandbits(53)

    def facts(self) -> Facts:
        """See Worker."""
        return {"weights_bytes": len(self.table) + len(self.ballast)}

    def identity(self) -> dict[str, Any]:
        """What two copies must not share."""
        return {
            "worker_id": self.worker_id,
            "random": self.number,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
        }


def _ballast(length: int) -> bytearray:
    """``length`` bytes (whole pages) without two equal pages, made fast."""
    pages_wanted = length // PAGE
    block = hashlib.shake_128(b"hotstart ballast").digest(1 << 20)
    data = bytearray(block * (pages_wanted * PAGE // len(block) + 1))[: pages_wanted * PAGE]
    for page in range(pages_wanted):
        struct.pack_into("<Q", data, page * PAGE, page)
    return data


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    worker: TableWorker

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, {})
        elif self.path == "/identity":
            self._answer(200, self.worker.identity())
        else:
            self._answer(404, {"error": "no such path"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path != "/v1/completions":
            self._answer(404, {"error": "no such path"})
            return
        try:
            asked = json.loads(body)
            count, heat = int(asked.get("max_tokens", 16)), float(asked.get("temperature", 0))
            tokens = self.worker.generate(str(asked["prompt"]), count, heat)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._answer(400, {"error": f"{type(error).__name__}: {error}"})
            return
        self.worker.requests += 1
        ids = [token.token_id for token in tokens]
        choice = {
            "index": 0,
            "text": " ".join(map(str, ids)),
            "token_ids": ids,
            "logprobs": {"token_logprobs": [token.logprob for token in tokens]},
            "finish_reason": "length",
        }
        name = f"cmpl-{self.worker.worker_id}-{self.worker.requests}"
        self._answer(200, {"id": name, "object": "text_completion", "model": "plain", "choices": [choice]})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """No access log."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    block_on_close = False

    def server_bind(self) -> None:
        # http.server asks the resolver for the host's name here, which takes seconds where there is none.
        self.allow_reuse_address = True
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "plain", self.server_address[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; prints the port once it listens."""
    parser = argparse.ArgumentParser(prog="python -m hotstart.hooks.engines.plain", description=__doc__)
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104  a sandbox has an address of its own
    parser.add_argument("--port", type=int, default=8000, help="0: any free port")
    parser.add_argument("--ballast-mb", type=int, default=0, help="memory that the answers depend on, in MiB")
    parser.add_argument("--kv-mb", type=int, default=8, help="KV cache in MiB")
    parser.add_argument("--token-ms", type=float, default=0, help="milliseconds that one token takes")
    given = parser.parse_args(argv)
    worker = TableWorker(given.ballast_mb << 20, given.kv_mb << 20, given.token_ms / 1000)
    handler = type("Handler", (_Handler,), {"worker": worker})
    server = _Server((given.host, given.port), handler)
    participant = attach(server, worker)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    print(f"plain worker listens on port {server.server_port}", flush=True)
    if participant:
        participant.ready()
    server.serve_forever(poll_interval=3600)
    return 0


if __name__ == "__main__":
    sys.exit(main())
