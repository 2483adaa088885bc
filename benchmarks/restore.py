"""``./dev bench restore``: cold start, stock CRIU and Hotstart of the same worker, interleaved in one run.

Every number is the time from the decision to start a worker to its first token over HTTP.  Ratios are what counts: the
machine is whatever it is, and all three are measured in turn on it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import client, machine, plot, stock
from benchmarks.worker import PROMPTS, TOKENS, model_path, vllm_spec
from hotstart.snapshot_agent import api
from hotstart.snapshot_agent.catalog.manifest import Manifest

READY_S = 300.0
WARM_UP = "hello world"


@dataclass
class Row:
    """All measurements of one model."""

    model: str
    cold_start_warm_s: list[float] = field(default_factory=list)
    criu_restore_warm_s: list[float] = field(default_factory=list)
    criu_restore_first_touch_s: list[float] = field(default_factory=list)
    """Before the machine's memory was touched: where a host backs guest memory lazily, this is the other state."""
    hotstart_restore_warm_s: list[float] = field(default_factory=list)
    hotstart_serving_s: list[float] = field(default_factory=list)
    """Until the restored worker reported ``resumed``, its canary compared."""
    skeleton_s: list[float] = field(default_factory=list)
    canary_s: list[float] = field(default_factory=list)
    frozen_s: list[float] = field(default_factory=list)
    image_bytes: dict[str, int] = field(default_factory=dict)
    stock_image_bytes: int = 0
    private_bytes: int = 0
    tokens_equal: bool = True
    logprobs_equal: bool = True
    memory_touch_gb_s: dict[str, float] = field(default_factory=dict)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="./dev bench restore", description=__doc__)
    parser.add_argument("--models", nargs="+", default=["smollm2", "0.6b"], help="which models (default: both)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--output", choices=["table", "json"], default="table", help="json: one object on stdout")
    parser.add_argument("--plot", type=Path, default=Path("out/restore.png"), help="where the plot goes")
    options = parser.parse_args()
    rows = [measure(model, options.rounds) for model in options.models]
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    plot.restore(rows, options.plot)
    if options.output == "json":
        print(json.dumps(as_json(rows)))
    else:
        table(rows)
        print(f"\nplot: {options.plot}")


def say(text: str) -> None:
    """Progress, on standard error."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def measure(model: str, rounds: int) -> Row:
    """All rounds of one model."""
    row = Row(model)
    with tempfile.TemporaryDirectory(prefix="hotstart-bench-", dir="/var/tmp") as directory:
        home = Path(directory) / "home"
        try:
            _measure(row, rounds, home, Path(directory))
        finally:
            for sandbox in api.sandboxes(home):
                api.stop(home, sandbox.name, grace_s=0)
    return row


def _measure(row: Row, rounds: int, home: Path, directory: Path) -> None:
    say(f"{row.model}: a worker is started, captured and stopped")
    manifest, answers = _capture(home, row)
    say(f"{row.model}: the same worker without hooks is dumped by stock CRIU")
    image = _stock_image(home, row, directory / "stock")
    row.image_bytes = _image_bytes(manifest, row.model)
    row.stock_image_bytes = image.bytes()
    row.memory_touch_gb_s["as found"] = machine.touch_memory()
    row.criu_restore_first_touch_s.append(_stock(home, image, "first"))
    row.memory_touch_gb_s["warm"] = machine.touch_memory()
    for number in range(rounds):
        row.criu_restore_warm_s.append(_stock(home, image, f"stock-{number}"))
        _hotstart(home, row, number, answers)
        row.cold_start_warm_s.append(_cold(home, row.model, number))
        say(
            f"{row.model} round {number + 1}: cold {row.cold_start_warm_s[-1]:.2f} s, "
            f"stock CRIU {row.criu_restore_warm_s[-1]:.2f} s, Hotstart {row.hotstart_restore_warm_s[-1]:.3f} s"
        )
    shutil.rmtree(directory / "stock")


def _capture(home: Path, row: Row) -> tuple[Manifest, dict[str, client.Answer]]:
    info = api.run(home, vllm_spec("source", row.model))
    info = api.wait_ready(home, "source", READY_S)
    client.complete(info.address, WARM_UP, 4)
    answers = {prompt: client.complete(info.address, prompt, TOKENS) for prompt in PROMPTS}
    snapshot = api.create_snapshot(home, "source", "bench", timeout_s=READY_S)
    row.frozen_s.append(snapshot.manifest.timings.frozen_s)
    api.stop(home, "source")
    return snapshot.manifest, answers


def _stock_image(home: Path, row: Row, directory: Path) -> stock.StockImage:
    info = api.run(home, vllm_spec("plain", row.model, engine="none"))
    client.first_token(info.address, WARM_UP, time.monotonic(), limit_s=READY_S)
    for prompt in PROMPTS:
        client.complete(info.address, prompt, TOKENS)
    time.sleep(0.5)  # connections of the warm-up are closed
    image = stock.dump(home, "plain", directory)
    api.stop(home, "plain")
    return image


def _cold(home: Path, model: str, number: int) -> float:
    name = f"cold-{number}"
    began = time.monotonic()
    info = api.run(home, vllm_spec(name, model, engine="none"))
    seconds = client.first_token(info.address, WARM_UP, began, limit_s=READY_S)
    api.stop(home, name, grace_s=0)
    return seconds


def _stock(home: Path, image: stock.StockImage, name: str) -> float:
    address, began = stock.restore(home, image, name)
    seconds = client.first_token(address, WARM_UP, began, limit_s=READY_S)
    api.stop(home, name, grace_s=0)
    return seconds


def _hotstart(home: Path, row: Row, number: int, answers: dict[str, client.Answer]) -> None:
    name = f"copy-{number}"
    began = time.monotonic()
    (result,) = api.restore(home, "bench", [name], cold_start=False)
    row.hotstart_serving_s.append(time.monotonic() - began)
    row.hotstart_restore_warm_s.append(client.first_token(result.address, WARM_UP, began, limit_s=READY_S))
    spans = {s["name"]: s["end_s"] - s["start_s"] for s in result.phases["spans"]}
    row.skeleton_s.append(spans["skeleton"])
    row.canary_s.append(float(result.engine_facts.get("canary_s", 0.0)))
    row.private_bytes = max(row.private_bytes, _private(home, name))
    for prompt, before in answers.items():
        after = client.complete(result.address, prompt, TOKENS)
        row.tokens_equal &= after.token_ids == before.token_ids
        row.logprobs_equal &= after.logprobs == before.logprobs
    api.stop(home, name, grace_s=0)


def _private(home: Path, name: str) -> int:
    return next(s.private_bytes for s in api.sandboxes(home, measure=True) if s.name == name)


def _image_bytes(manifest: Manifest, model: str) -> dict[str, int]:
    sizes = manifest.sizes
    weights = manifest.engine.facts.get("weights_bytes", 0)
    known = int(weights) if isinstance(weights, int | float) else 0
    known = known or sum(f.stat().st_size for f in model_path(model).glob("*.safetensors"))
    content = sizes.memory_bytes + sizes.skeleton_bytes + sizes.rootfs_bytes + sizes.tmpfs_bytes
    return {
        "kv": sizes.kv_bytes,
        "weights": min(known, content),
        "other": max(0, content - known),
        "stored": sizes.stored_bytes,
    }


def table(rows: list[Row]) -> None:
    """The comparison, for people."""
    for row in rows:
        fast = statistics.median(row.hotstart_restore_warm_s)
        best = min(row.cold_start_warm_s)
        criu = statistics.median(row.criu_restore_warm_s)
        print(f"\n{row.model}: time to first token, median of {len(row.cold_start_warm_s)} interleaved rounds")
        _line("cold start (best)", best, best / fast, row.cold_start_warm_s)
        _line("stock criu restore", criu, criu / fast, row.criu_restore_warm_s)
        _line("  before memory was touched", row.criu_restore_first_touch_s[0], None, [])
        _line("Hotstart", fast, 1.0, row.hotstart_restore_warm_s)
        _line("  of it the canary", statistics.median(row.canary_s), None, [])
        print(f"  private memory of a copy   {row.private_bytes / 2**20:8.1f} MiB")
        print(f"  source stopped for         {row.frozen_s[0]:8.2f} s")
        print(
            f"  snapshot on disk           {row.image_bytes['stored'] / 2**20:8.0f} MiB, KV {row.image_bytes['kv']} B"
        )
        print(f"  stock images               {row.stock_image_bytes / 2**20:8.0f} MiB")
        print(f"  tokens equal {row.tokens_equal}, log-probabilities equal {row.logprobs_equal}")


def _line(label: str, seconds: float, ratio: float | None, spread: list[float]) -> None:
    times = f"{ratio:7.1f} x" if ratio is not None else " " * 9
    between = f"   ({min(spread):.2f} to {max(spread):.2f})" if spread else ""
    print(f"  {label:<27}{seconds:8.3f} s {times}{between}")


def as_json(rows: list[Row]) -> dict[str, Any]:
    """The object of ``--output json``."""
    return {"models": [vars(row) for row in rows]}


if __name__ == "__main__":
    main()
