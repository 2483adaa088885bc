"""A real vLLM server with the plugin, over a control directory, without a sandbox.

One server for all tests: each leaves it serving.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotstart import audit
from hotstart.clock import Deadline
from hotstart.hooks.control.directory import ControlDirectory, new_nonce
from hotstart.hooks.control.protocol import Canary, CanaryToken, Order, Report, State, Verb
from hotstart.hooks.launcher import environment, seccomp
from hotstart.linux.syscalls import seccomp_set_filter
from hotstart.snapshot_agent.sandbox import inject

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

PORT = 8417
KV_BYTES = 1 << 30
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time there was a",
    "Water boils at a hundred degrees. " * 40,  # several blocks of the prefix cache
)


SEIZE = """
import ctypes, sys
print(ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0), flush=True)
sys.stdin.read()
"""


def _python() -> Path:
    if "HOTSTART_VLLM_PYTHON" not in os.environ or "HOTSTART_MODELS" not in os.environ:
        pytest.skip("./dev test says where vLLM and the models are")
    return Path(os.environ["HOTSTART_VLLM_PYTHON"])


def _environment(home: Path, control: Path) -> dict[str, str]:
    asked = {
        "PATH": f"{_python().parent}:/usr/bin:/bin",
        "HOME": str(home),
        "HOTSTART_CONTROL": str(control),
        "PYTHONPATH": str(inject.site(home)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",  # threads that wait for each other at every step crawl on a busy machine
        "HF_HUB_OFFLINE": "1",
    }
    return environment.CAPTURABLE | asked


class Worker:
    """The server and its agent's side of the conversation."""

    def __init__(self, control: ControlDirectory, process: subprocess.Popen[bytes], log: Path) -> None:
        self.control = control
        self.process = process
        self.log = log
        self.ready = self.wait({State.READY}, "boot", 300)

    def wait(self, states: set[State], nonce: str, seconds: float = 150) -> Report:
        def alive() -> None:
            assert self.process.poll() is None, self.log.read_text()[-3000:]

        return self.control.wait_for(states, nonce, Deadline.after(seconds, "the worker"), alive)

    def order(self, verb: Verb, *, restored: bool = False, deadline_s: float = 120, **order: Any) -> Report:
        nonce = new_nonce()
        self.control.give(Order(verb, nonce, restored, deadline_s, **order))
        return self.wait({State.QUIESCED, State.RESUMED, State.FAILED}, nonce)

    def rest(self) -> Report:
        """Bring it to rest, successfully."""
        report = self.order(Verb.QUIESCE)
        assert report.state is State.QUIESCED, report
        return report

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", PORT, timeout=300)

    def tokens(self, prompt: str, count: int = 8, **more: Any) -> tuple[list[int], list[float]]:
        """Token ids and log-probabilities."""
        with contextlib.closing(self.connect()) as connection:
            return complete(connection, prompt, count, **more)

    def resident(self) -> int:
        """Anonymous memory of the tree, in bytes."""
        found = 0
        for pid in audit.tree(self.process.pid):
            match = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
            found += int(match[1]) << 10 if match else 0
        return found

    def connections(self) -> list[audit.Endpoint]:
        """What is connected to a client."""
        facts = audit.gather(audit.tree(self.process.pid), reference=self.process.pid)
        return [end for end in facts.endpoints if end.local[1] == PORT and end.state == audit.TCP_ESTABLISHED]


def complete(
    connection: http.client.HTTPConnection, prompt: str, count: int, **more: Any
) -> tuple[list[int], list[float]]:
    body = {"model": "m", "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True}
    body |= {"return_token_ids": True, "logprobs": 0, **more}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text
    choice = json.loads(text)["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    home = tmp_path_factory.mktemp("vllm")
    control = ControlDirectory.create(home / "control")
    model = Path(os.environ.get("HOTSTART_MODELS", "")) / "smollm2"
    command: list[str | Path] = [
        _python(),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        model,
        "--served-model-name",
        "m",
    ]
    command += ["--host", "127.0.0.1", "--port", str(PORT), "--max-model-len", "2048", "--enforce-eager"]
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(
            command,
            env=_environment(home, control.path),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: seccomp_set_filter(seccomp.program()),  # as the launcher does
        ) as process,
    ):
        try:
            yield Worker(control, process, home / "log")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def answers(worker: Worker) -> list[tuple[list[int], list[float]]]:
    """What the fresh worker answers."""
    return [worker.tokens(prompt) for prompt in PROMPTS]


def test_ready_means_that_it_answers(worker: Worker) -> None:
    facts = worker.ready.facts
    assert worker.ready.engine == "vllm"
    assert str(facts["engine_version"]).startswith("0.32")
    assert 1 < float(facts["cold_start_s"]) < 300
    assert int(facts["processes"]) == 4  # API server, resource tracker, EngineCore, Worker
    model = Path(os.environ["HOTSTART_MODELS"]) / "smollm2" / "model.safetensors"
    assert model.stat().st_size * 0.95 < int(facts["weights_bytes"]) < model.stat().st_size * 1.5
    with contextlib.closing(worker.connect()) as connection:
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200


def test_at_rest_the_kv_cache_is_gone_and_afterwards_all_is_as_before(worker: Worker, answers: list[Any]) -> None:
    before = worker.resident()
    quiesced = worker.rest()
    assert KV_BYTES * 0.99 < int(quiesced.facts["kv_bytes"]) <= KV_BYTES
    assert int(quiesced.facts["kv_bytes"]) - int(quiesced.facts["kv_released_bytes"]) < 1 << 20
    assert before - worker.resident() > KV_BYTES * 0.95
    assert quiesced.canary is not None
    assert len(quiesced.canary.tokens) == 4
    assert worker.order(Verb.RESUME).state is State.RESUMED
    assert [worker.tokens(prompt) for prompt in PROMPTS] == answers


def test_the_canary_is_what_a_user_would_get(worker: Worker) -> None:
    canary = worker.rest().canary
    worker.order(Verb.RESUME)
    assert canary is not None
    ids, logprobs = worker.tokens(canary.prompt, 4)
    assert [token.token_id for token in canary.tokens] == ids
    assert [token.logprob for token in canary.tokens] == pytest.approx(logprobs, abs=1e-4)


def test_two_copies_answer_alike_and_dream_differently(worker: Worker, answers: list[Any]) -> None:
    dreams, seeded = [], []
    for name in ("copy-a", "copy-b"):
        canary = worker.rest().canary
        report = worker.order(Verb.RESUME, restored=True, canary=canary, identity={"worker_id": name, "hostname": name})
        assert report.state is State.RESUMED, report
        assert report.canary is not None
        assert canary is not None
        assert report.canary.tokens[0].token_id == canary.tokens[0].token_id
        dreams.append(worker.tokens(PROMPTS[2], 16, temperature=1.0)[0])
        seeded.append(worker.tokens(PROMPTS[2], 16, temperature=1.0, seed=7)[0])
        assert [worker.tokens(prompt) for prompt in PROMPTS] == answers
    assert dreams[0] != dreams[1]
    assert seeded[0] == seeded[1]


def test_a_request_that_comes_during_the_rest_is_answered_after_it(worker: Worker, answers: list[Any]) -> None:
    worker.rest()
    assert worker.connections() == []
    got: list[Any] = []
    asking = threading.Thread(target=lambda: got.append(worker.tokens(PROMPTS[0])))
    asking.start()
    asking.join(0.5)
    assert asking.is_alive()
    assert worker.connections() == []  # it waits in the kernel, in no process of the worker
    worker.order(Verb.RESUME)
    asking.join(120)
    assert got == [answers[0]]


def test_running_requests_are_answered_and_idle_connections_ended(worker: Worker, answers: list[Any]) -> None:
    with contextlib.closing(worker.connect()) as kept:
        assert complete(kept, PROMPTS[0], 8) == answers[0]
        got: list[Any] = []
        asking = threading.Thread(target=lambda: got.append(worker.tokens(PROMPTS[1], 30)))
        asking.start()
        time.sleep(0.2)
        worker.rest()
        asking.join(20)
        assert len(got[0][0]) == 30
        assert kept.sock.recv(1) == b""
        worker.order(Verb.RESUME)


def test_a_worker_that_is_too_busy_serves_on(worker: Worker, answers: list[Any]) -> None:
    got: list[Any] = []
    asking = threading.Thread(target=lambda: got.append(worker.tokens(PROMPTS[1], 80)))
    asking.start()
    time.sleep(0.2)
    report = worker.order(Verb.QUIESCE, deadline_s=0.2)
    assert (report.state, report.reason) == (State.FAILED, "quiesce-busy")
    assert worker.tokens(PROMPTS[0]) == answers[0]
    asking.join(300)
    assert len(got[0][0]) == 80


def test_what_the_audit_finds_is_said_and_the_worker_serves_on(worker: Worker, answers: list[Any]) -> None:
    (api_server, *_) = audit.tree(worker.process.pid)
    tracer = subprocess.Popen(["python3", "-c", SEIZE, str(api_server)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == b"0\n"
        report = worker.order(Verb.QUIESCE)
        tracer.kill()
    assert (report.state, report.reason) == (State.FAILED, "traced")
    assert worker.tokens(PROMPTS[0]) == answers[0]


def test_other_tokens_than_at_capture_are_never_served(worker: Worker, answers: list[Any]) -> None:
    canary = worker.rest().canary
    assert canary is not None
    first = canary.tokens[0]
    for wrong in (CanaryToken(first.token_id + 1, first.logprob), replace(first, logprob=first.logprob - 0.01)):
        report = worker.order(Verb.RESUME, restored=True, canary=Canary(canary.prompt, (wrong,)))
        assert (report.state, report.reason) == (State.FAILED, "canary-mismatch")
        with contextlib.closing(worker.connect()) as connection:
            connection.timeout = 0.5
            connection.request("GET", "/health")
            with pytest.raises(TimeoutError):
                connection.getresponse()
    worker.order(Verb.RESUME)
    assert worker.tokens(PROMPTS[0]) == answers[0]


def test_a_worker_at_rest_can_be_stopped(worker: Worker) -> None:
    worker.rest()
    worker.process.send_signal(signal.SIGTERM)
    worker.process.wait(120)
    assert audit.tree(worker.process.pid) == [worker.process.pid]


def test_an_unknown_version_is_refused_in_one_line(tmp_path: Path) -> None:
    control = ControlDirectory.create(tmp_path / "control")
    program = "import vllm; vllm.__version__ = '9.9'; from hotstart.hooks.engines.vllm import plugin; plugin.register()"
    done = subprocess.run(
        [_python(), "-c", program], env=_environment(tmp_path, control.path), capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("hotstart: ")]
    assert len(lines) == 1
    assert "engine-unsupported: vLLM 9.9" in lines[0]
    report = control.state()
    assert report is not None
    assert (report.state, report.reason) == (State.FAILED, "engine-unsupported")
