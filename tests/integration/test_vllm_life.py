"""A real vLLM worker from its cold start to two copies: one start for all of these tests."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import client
from benchmarks.client import Answer
from benchmarks.worker import MODELS_ENV, PROMPTS, VLLM_PYTHON_ENV, model_path, vllm_spec
from hotstart.snapshot_agent import api
from tests.integration.live import Live, needs_criu

MODEL = "smollm2"
TOKENS = 8
START_S = 240.0
_MIB = 2**20

pytestmark = [
    pytest.mark.criu,
    pytest.mark.vllm,
    needs_criu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not (os.environ.get(VLLM_PYTHON_ENV) and os.environ.get(MODELS_ENV) and model_path(MODEL).exists()),
        reason=f"{VLLM_PYTHON_ENV} and {MODELS_ENV} are not set; ./dev test sets them",
    ),
]


@dataclass(frozen=True)
class Life:
    """What the one worker left: its answers before and after its capture, the snapshot, and two copies."""

    live: Live
    before: dict[str, Answer]
    after: dict[str, Answer]
    snapshot: api.SnapshotInfo
    copies: list[api.RestoreResult]


def answers(address: str) -> dict[str, Answer]:
    return {prompt: client.complete(address, prompt, TOKENS) for prompt in PROMPTS}


def sample(address: str, **more: Any) -> list[int]:
    """Token ids at temperature 1."""
    body = {"model": "m", "prompt": PROMPTS[2], "max_tokens": 16, "temperature": 1, "return_token_ids": True, **more}
    connection = http.client.HTTPConnection(address, client.PORT, timeout=120)
    try:
        connection.request(
            "POST", "/v1/completions", json.dumps({**body, "ignore_eos": True}), {"content-type": "application/json"}
        )
        value = json.loads(connection.getresponse().read())
        return list(value["choices"][0]["token_ids"])
    finally:
        connection.close()


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    directory = tmp_path_factory.mktemp("vllm")
    # modules of the user's own under names that Hotstart uses too: they must win where the user looks, and harm nobody
    cwd = directory / "cwd"
    cwd.mkdir()
    for name in ("hooks", "gms"):
        (cwd / f"{name}.py").write_text("raise RuntimeError('the module of the user was imported')\n")
    live = Live((directory / "home").resolve())
    try:
        spec = replace(vllm_spec("src", MODEL), cwd=str(cwd))
        address = api.run(live.home, spec).address
        api.wait_ready(live.home, "src", START_S)
        before = answers(address)
        snapshot = live.capture("src", "one", timeout_s=120)
        after = answers(address)
        live.stop("src")
        yield Life(live, before, after, snapshot, live.restore("one", "copy-1", "copy-2", timeout_s=120))
    finally:
        live.close()


def test_the_source_serves_on(life: Life) -> None:
    assert life.after == life.before


def test_copies_answer_as_their_source(life: Life) -> None:
    assert [copy.outcome for copy in life.copies] == ["restored", "restored"]
    for copy in life.copies:
        assert answers(copy.address) == life.before


def test_the_kv_cache_is_not_in_the_snapshot(life: Life) -> None:
    sizes = life.snapshot.manifest.sizes
    assert sizes.kv_bytes == 0
    assert sizes.kv_released_bytes >= 900 * _MIB  # VLLM_CPU_KVCACHE_SPACE=1
    assert sizes.stored_bytes < 3000 * _MIB


def test_copies_share_their_memory(life: Life) -> None:
    assert life.snapshot.manifest.sizes.memory_bytes > 1024 * _MIB
    private = {info.name: info.private_bytes for info in api.sandboxes(life.live.home, measure=True)}
    for copy in life.copies:
        assert 0 < private[copy.name] < 200 * _MIB
        assert {verdict["mode"] for verdict in copy.verdicts} == {"mapped"}


def test_copies_sample_differently_and_seeds_hold(life: Life) -> None:
    first, second = (copy.address for copy in life.copies)
    assert sample(first) != sample(second)
    assert sample(first, seed=7) == sample(second, seed=7)


def test_the_users_modules_do_not_matter(life: Life) -> None:
    for name in ("copy-1", "copy-2"):
        assert "the module of the user" not in life.live.log(name)
        command = Path(f"/proc/{life.live.sandbox(name).init_pid}/root{life.snapshot.manifest.sandbox.cwd}")
        assert (command / "hooks.py").exists()
    assert life.snapshot.manifest.engine.name == "vllm"


def test_a_snapshot_stays_as_it_was(life: Life) -> None:
    assert api.verify_snapshot(life.live.home, "one") == []


def test_the_end_of_one_copy_is_not_the_others(life: Life) -> None:
    first, second = life.copies
    life.live.stop(first.name)
    prompt = PROMPTS[0]
    assert client.complete(second.address, prompt, TOKENS) == life.before[prompt]
