"""``./dev demo``: a real vLLM worker answers, is captured, is killed, and comes back three times.

Everything is printed as it happens; the table at the end compares cold start, stock ``criu restore`` of the same
worker, and Hotstart.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import client, stock
from benchmarks.worker import PROMPTS, QUESTION, TOKENS, vllm_spec
from hotstart.snapshot_agent import api, timeline

READY_S = 300.0
COPIES = 3
_MIB = 2**20


class Demo:
    """One run; ``say`` prints a line with the seconds since the beginning."""

    def __init__(self, model: str, home: Path, console: Console) -> None:
        self.model = model
        self.home = home
        self.console = console
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        """A line of the story."""
        self.console.print(f"[dim]{time.monotonic() - self.began:6.1f} s[/dim]  {text}", highlight=False)

    def cold_start(self) -> tuple[float, dict[str, client.Answer]]:
        """Start the worker from nothing; returns seconds to its first token, and its answers."""
        self.say("[bold]1. cold start[/bold]: hotstart run -- python -m vllm.entrypoints.openai.api_server …")
        began = time.monotonic()
        info = api.run(self.home, vllm_spec("source", self.model))
        cold = client.first_token(info.address, PROMPTS[0], began, limit_s=READY_S)
        self.say(f"first token after [bold]{cold:.1f} s[/bold], at {info.address}:{client.PORT}")
        self.say(f"    {QUESTION}")
        self.say(f"    [green]{client.chat(info.address, QUESTION).strip()}[/green]")
        api.wait_ready(self.home, "source", READY_S)
        return cold, {p: client.complete(info.address, p, TOKENS) for p in PROMPTS}

    def capture(self, directory: Path) -> tuple[stock.StockImage, api.SnapshotInfo]:
        """Dump the worker with stock CRIU (the baseline), capture it, and kill it."""
        time.sleep(0.3)  # the client's connections are closed
        self.say("stock criu dump of the same worker, for the comparison")
        image = stock.dump(self.home, "source", directory / "stock")
        self.say("[bold]2. capture[/bold]: hotstart snapshot create source --name demo")
        snapshot = api.create_snapshot(self.home, "source", "demo", timeout_s=READY_S)
        sizes, timings = snapshot.manifest.sizes, snapshot.manifest.timings
        self.say(
            f"captured in {timings.total_s:.1f} s, the worker stood still for {timings.frozen_s:.2f} s; "
            f"{sizes.stored_bytes / _MIB:.0f} MiB on disk, KV cache {sizes.kv_bytes} bytes "
            f"({sizes.kv_released_bytes / _MIB:.0f} MiB released before)"
        )
        api.stop(self.home, "source", grace_s=0)
        self.say("[bold]3. the worker is killed[/bold]")
        return image, snapshot

    def stock_restore(self, image: stock.StockImage) -> float:
        """The baseline."""
        address, began = stock.restore(self.home, image, "stock")
        seconds = client.first_token(address, PROMPTS[0], began, limit_s=READY_S)
        self.say(f"stock criu restore: first token after {seconds:.2f} s")
        api.stop(self.home, "stock", grace_s=0)
        return seconds

    def one_copy(self) -> tuple[float, api.RestoreResult]:
        """A single copy, measured to its first token."""
        began = time.monotonic()
        (result,) = api.restore(self.home, "demo", ["solo"], cold_start=False)
        seconds = client.first_token(result.address, PROMPTS[0], began, limit_s=READY_S)
        self.say(f"[bold]4. hotstart restore demo[/bold]: first token after [bold]{seconds:.2f} s[/bold]")
        return seconds, result

    def copies(self, answers: dict[str, client.Answer]) -> bool:
        """Three copies at once, each asked everything; True if all answered as the source did."""
        api.stop(self.home, "solo", grace_s=0)
        self.say(f"[bold]5. hotstart restore demo --count {COPIES}[/bold]")
        names = [f"copy-{n}" for n in range(1, COPIES + 1)]
        results = api.restore(self.home, "demo", names, cold_start=False)
        with ThreadPoolExecutor(COPIES) as pool:
            found = list(pool.map(lambda r: {p: client.complete(r.address, p, TOKENS) for p in PROMPTS}, results))
        private = {s.name: s.private_bytes for s in api.sandboxes(self.home, measure=True)}
        for result, answered in zip(results, found, strict=True):
            same = "same tokens" if answered == answers else "[red]OTHER tokens[/red]"
            reply = client.chat(result.address, QUESTION).strip()
            self.say(
                f"    {result.name} at {result.address:<12} {same} for {len(PROMPTS)} prompts, "
                f"{private[result.name] / _MIB:.0f} MiB private: [green]{reply}[/green]"
            )
        return all(answered == answers for answered in found)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="smollm2 (default) or 0.6b")
    parser.add_argument("--timeline", type=Path, default=Path("out/demo.svg"), help="where the timeline goes")
    options = parser.parse_args()
    console = Console(width=132)
    with tempfile.TemporaryDirectory(prefix="hotstart-demo-", dir="/var/tmp") as directory:
        home = Path(directory) / "home"
        try:
            same = run(Demo(options.model, home, console), Path(directory), options.timeline)
        finally:
            for sandbox in api.sandboxes(home):
                api.stop(home, sandbox.name, grace_s=0)
    if not same:
        raise SystemExit("a copy answered with other tokens than its source")


def run(demo: Demo, directory: Path, picture: Path) -> bool:
    """The whole story; True if every copy answered as the source did."""
    cold, answers = demo.cold_start()
    image, snapshot = demo.capture(directory)
    criu = demo.stock_restore(image)
    fast, result = demo.one_copy()
    private = next(s.private_bytes for s in api.sandboxes(demo.home, measure=True) if s.name == "solo")
    same = demo.copies(answers)
    demo.console.print(comparison(cold, criu, fast, private, image, snapshot))
    demo.console.print(phases(result.phases))
    picture.parent.mkdir(parents=True, exist_ok=True)
    capture = vars_of(snapshot)
    picture.write_text(timeline.svg([("capture", capture), ("restore", result.phases)]))
    demo.say(f"timeline: {picture}")
    return same


def comparison(
    cold: float, criu: float, fast: float, private: int, image: stock.StockImage, snapshot: api.SnapshotInfo
) -> Table:
    """The table that the demo is about."""
    table = Table(title="time to first token over HTTP, one worker, this run", title_justify="left")
    for column in ("", "seconds", "ratio", "on disk", "private memory of a copy"):
        table.add_column(column, justify="right" if column else "left")
    stored = snapshot.manifest.sizes.stored_bytes
    table.add_row("cold start", f"{cold:.2f}", f"{cold / fast:.0f}×", "", "all of it")
    table.add_row(
        "stock criu restore", f"{criu:.2f}", f"{criu / fast:.1f}×", f"{image.bytes() / _MIB:.0f} MiB", "all of it"
    )
    table.add_row("[bold]Hotstart[/bold]", f"{fast:.2f}", "1×", f"{stored / _MIB:.0f} MiB", f"{private / _MIB:.0f} MiB")
    return table


def phases(told: dict[str, Any]) -> Table:
    """The phases of the single restore."""
    table = Table(title=f"phases of the restore: {told['total_s']:.3f} s", title_justify="left")
    table.add_column("phase")
    table.add_column("from", justify="right")
    table.add_column("seconds", justify="right")
    for span in told["spans"]:
        table.add_row(span["name"], f"{span['start_s']:.3f}", f"{span['end_s'] - span['start_s']:.3f}")
    table.add_row("unaccounted", "", f"{told['unaccounted_s']:.3f}")
    return table


def vars_of(snapshot: api.SnapshotInfo) -> dict[str, Any]:
    """The capture's phases in the form that the timeline draws."""
    timings = snapshot.manifest.timings
    return {
        "total_s": timings.total_s,
        "unaccounted_s": timings.unaccounted_s,
        "spans": [{"name": s.name, "start_s": s.start_s, "end_s": s.end_s} for s in timings.spans],
    }


if __name__ == "__main__":
    main()
