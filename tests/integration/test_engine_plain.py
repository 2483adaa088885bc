"""The plain worker as a program, over a control directory, without a sandbox: what capture and restore ask of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotstart.clock import Deadline
from hotstart.hooks.control.directory import ControlDirectory, new_nonce
from hotstart.hooks.control.protocol import Canary, CanaryToken, Order, Report, State, Verb

BALLAST_MB = 48
PROMPTS = ("hello", "a longer prompt than the other", "", "ünïcode")


class Worker:
    """One running plain worker and its agent's side of the conversation."""

    def __init__(self, control: ControlDirectory, process: subprocess.Popen[str]) -> None:
        self.control = control
        self.process = process
        assert process.stdout is not None
        self.port = int(process.stdout.readline().split()[-1])
        self.ready = self.wait({State.READY}, "boot")

    def wait(self, states: set[State], nonce: str) -> Report:
        def alive() -> None:
            assert self.process.poll() is None, "the worker died"

        return self.control.wait_for(states, nonce, Deadline.after(10, "the worker"), alive)

    def order(self, verb: Verb, *, restored: bool = False, deadline_s: float = 5, **order: Any) -> Report:
        nonce = new_nonce()
        self.control.give(Order(verb, nonce, restored, deadline_s, **order))
        return self.wait({State.QUIESCED, State.RESUMED, State.FAILED}, nonce)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def ask(self, method: str = "POST", path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
        connection = self.connect()
        with contextlib.closing(connection):
            return ask_on(connection, method, path, **body)

    def tokens(self, prompt: str, **body: Any) -> tuple[list[int], list[float]]:
        choice = self.ask(prompt=prompt, max_tokens=8, **body)["choices"][0]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    def anonymous_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert found
        return int(found[1])


def ask_on(connection: http.client.HTTPConnection, method: str, path: str, **body: Any) -> dict[str, Any]:
    connection.request(method, path, json.dumps(body) if body else None)
    answer: dict[str, Any] = json.load(connection.getresponse())
    return answer


@contextlib.contextmanager
def _start(path: Path, *arguments: str) -> Iterator[Worker]:
    control = ControlDirectory.create(path)
    command = [sys.executable, "-m", "hotstart.hooks.engines.plain", "--port", "0", "--host", "127.0.0.1", *arguments]
    environment = {**os.environ, "HOTSTART_CONTROL": str(path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Worker(control, process)
        finally:
            process.kill()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with _start(tmp_path / "control", "--ballast-mb", str(BALLAST_MB), "--kv-mb", "32") as worker:
        yield worker


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Worker]:
    with _start(tmp_path / "control", "--token-ms", "40") as worker:
        yield worker


def test_the_same_tokens_before_at_rest_and_after(worker: Worker) -> None:
    before = [worker.tokens(prompt) for prompt in PROMPTS]
    assert len({str(answer) for answer in before}) == len(PROMPTS)
    quiesced = worker.order(Verb.QUIESCE)
    assert quiesced.state is State.QUIESCED, quiesced
    assert worker.order(Verb.RESUME).state is State.RESUMED
    assert [worker.tokens(prompt) for prompt in PROMPTS] == before
    again = worker.order(Verb.QUIESCE)
    assert worker.order(Verb.RESUME, restored=True, canary=again.canary).state is State.RESUMED
    assert [worker.tokens(prompt) for prompt in PROMPTS] == before


def test_the_kv_cache_is_given_back(worker: Worker) -> None:
    before = worker.anonymous_kib()
    quiesced = worker.order(Verb.QUIESCE)
    assert quiesced.facts["kv_bytes"] == quiesced.facts["kv_released_bytes"] == 32 << 20
    assert before - worker.anonymous_kib() > 30 << 10


def test_ready_knows_its_start_and_its_weights(worker: Worker) -> None:
    assert 0 < float(worker.ready.facts["cold_start_s"]) < 10
    assert int(worker.ready.facts["weights_bytes"]) == (BALLAST_MB << 20) + (1 << 16)
    assert worker.ready.pid == worker.process.pid


def test_a_copy_has_an_identity_of_its_own(worker: Worker) -> None:
    seen = [worker.ask("GET", "/identity")]
    streams = []
    for name in ("copy-a", "copy-b"):
        quiesced = worker.order(Verb.QUIESCE)
        identity = {"worker_id": name, "hostname": name}
        worker.order(Verb.RESUME, restored=True, canary=quiesced.canary, identity=identity)
        seen.append(worker.ask("GET", "/identity"))
        assert worker.ask(prompt="x", max_tokens=1)["id"].startswith(f"cmpl-{name}-")
        streams.append(worker.tokens("hello", temperature=1))
    assert [one["worker_id"] for one in seen[1:]] == ["copy-a", "copy-b"]
    assert len({one["random"] for one in seen}) == 3
    assert streams[0] != streams[1]


def test_wrong_memory_is_noticed_before_anyone_is_served(worker: Worker) -> None:
    quiesced = worker.order(Verb.QUIESCE)
    with open(f"/proc/{worker.process.pid}/maps") as maps, open(f"/proc/{worker.process.pid}/mem", "r+b", 0) as memory:
        for line in maps:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            if end - start >= BALLAST_MB << 20 and "rw-p" in line:
                memory.seek(start + 4096)  # after malloc's own words
                memory.write(b"\1" * (end - start - 8192))
    report = worker.order(Verb.RESUME, restored=True, canary=quiesced.canary)
    assert (report.state, report.reason) == (State.FAILED, "canary-mismatch")
    with contextlib.closing(worker.connect()) as connection:
        connection.timeout = 0.3
        connection.request("GET", "/health")
        with pytest.raises(TimeoutError):
            connection.getresponse()


def test_another_canary_is_another_worker(worker: Worker) -> None:
    worker.order(Verb.QUIESCE)
    report = worker.order(Verb.RESUME, restored=True, canary=Canary("x", (CanaryToken(1, -1.0),)))
    assert (report.state, report.reason) == (State.FAILED, "canary-mismatch")


def test_a_running_request_is_answered_before_the_rest(slow: Worker) -> None:
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(slow.ask(prompt="x", max_tokens=10)))
    asking.start()
    time.sleep(0.1)
    quiesced = slow.order(Verb.QUIESCE)
    assert quiesced.state is State.QUIESCED
    assert float(quiesced.facts["drain_s"]) > 0.15
    asking.join(1)
    assert len(answers[0]["choices"][0]["token_ids"]) == 10


def test_a_worker_that_is_too_busy_serves_on(slow: Worker) -> None:
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(slow.ask(prompt="x", max_tokens=20)))
    asking.start()
    time.sleep(0.1)
    report = slow.order(Verb.QUIESCE, deadline_s=0.1)
    assert (report.state, report.reason) == (State.FAILED, "quiesce-busy")
    assert slow.ask("GET", "/health") == {}
    asking.join(5)
    assert len(answers[0]["choices"][0]["token_ids"]) == 20


def test_a_request_that_comes_during_the_rest_is_answered_after_it(worker: Worker) -> None:
    before = worker.tokens("hello")
    worker.order(Verb.QUIESCE)
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(worker.tokens("hello")))
    asking.start()
    asking.join(0.3)
    assert asking.is_alive()
    worker.order(Verb.RESUME)
    asking.join(5)
    assert answers == [before]


def test_kept_alive_connections_are_ended_and_silent_ones_too(worker: Worker) -> None:
    with contextlib.closing(worker.connect()) as kept, contextlib.closing(worker.connect()) as silent:
        ask_on(kept, "GET", "/health")
        ask_on(kept, "GET", "/health")  # it is kept
        silent.connect()
        time.sleep(0.1)
        quiesced = worker.order(Verb.QUIESCE)
        assert quiesced.state is State.QUIESCED, quiesced
        assert kept.sock.recv(1) == b""
        assert silent.sock.recv(1) == b""


def test_without_a_sandbox_there_is_no_participant(tmp_path: Path) -> None:
    for environment in ({}, {"HOTSTART_CONTROL": str(tmp_path / "c"), "HOTSTART_ENGINE": "none"}):
        ControlDirectory.create(tmp_path / "c") if environment else None
        command = [sys.executable, "-m", "hotstart.hooks.engines.plain", "--port", "0", "--host", "127.0.0.1"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOTSTART_")}
        with subprocess.Popen(command, env=clean | environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith("plain worker listens")
                threads = list(Path(f"/proc/{process.pid}/task").iterdir())
                assert len(threads) == 1
            finally:
                process.kill()
    assert list((tmp_path / "c" / "worker").iterdir()) == []
