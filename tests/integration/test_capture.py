"""Capture on the real engine: what a snapshot holds, and a source that serves on."""

from __future__ import annotations

import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotstart.snapshot_agent import api
from tests.conftest import eventually
from tests.integration.live import Live, ask, ask_all, needs_criu, reason_of

BALLAST_MIB = 32
KV_MIB = 48

pytestmark = [pytest.mark.criu, needs_criu]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live((tmp_path_factory.mktemp("capture") / "home").resolve())
    try:
        yield live
    finally:
        live.close()


@pytest.fixture(scope="module")
def source(live: Live) -> api.SandboxInfo:
    return live.start("--ballast-mb", str(BALLAST_MIB), "--kv-mb", str(KV_MIB), name="src")


def test_a_capture_leaves_a_snapshot_and_nothing_else(live: Live, source: api.SandboxInfo) -> None:
    answers = ask_all(source.address)
    live.capture("src", "warm-up")
    before = live.traces_of_captures("src")
    told: list[tuple[str, float]] = []
    info = live.capture("src", "one", progress=lambda name, fraction: told.append((name, fraction)))
    assert ask_all(source.address) == answers
    assert live.traces_of_captures("src") == before
    assert live.info("src").state == "ready"
    assert [snapshot.name for snapshot in api.snapshots(live.home)] == ["one", "warm-up"]
    assert api.inspect_snapshot(live.home, "one") == info
    assert api.verify_snapshot(live.home, "one") == []
    phases = [name for name, fraction in told if not fraction]
    assert phases == ["preflight", "quiesce", "dump", "resume", "convert", "digest", "publish"]
    assert all(0 <= fraction <= 1 for _name, fraction in told)
    assert live.log("src").count("\n") == 1  # "listens on port": a capture is no reason to write into a worker's log


def test_what_the_manifest_says(live: Live, source: api.SandboxInfo) -> None:
    manifest = live.capture("src").manifest
    sizes, timings = manifest.sizes, manifest.timings
    assert sizes.kv_bytes == 0
    assert sizes.kv_released_bytes == KV_MIB << 20
    assert BALLAST_MIB << 20 < sizes.memory_bytes < (BALLAST_MIB + KV_MIB) << 20
    assert manifest.engine.name == "plain"
    assert manifest.engine.canary is not None
    assert len(manifest.engine.canary.tokens) > 1
    assert tuple(manifest.sandbox.command) == source.command
    assert 0 < timings.frozen_s < timings.total_s
    assert 0 <= timings.unaccounted_s < timings.total_s / 2
    assert {"quiesce", "dump", "thaw", "resume", "convert", "digest"} <= {span.name for span in timings.spans}
    assert all(0 <= span.start_s <= span.end_s <= timings.total_s + 1e-3 for span in timings.spans)


def test_only_root_reads_a_snapshot(live: Live, source: api.SandboxInfo) -> None:
    path = live.capture("src", tmp_name := live.fresh("modes")).path
    assert path == live.home / "snapshots" / tmp_name
    for entry in [path, path.parent, *path.rglob("*")]:
        assert stat.S_IMODE(entry.stat().st_mode) == (0o700 if entry.is_dir() else 0o600), entry
        assert entry.stat().st_uid == 0


def test_a_request_that_comes_during_a_capture_is_answered(live: Live) -> None:
    slow = live.start("--token-ms", "40")
    expected = ask(slow.address, "long", 20), ask(slow.address, "short", 1)
    answers: dict[str, object] = {}

    def send(prompt: str, tokens: int) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.update({prompt: ask(slow.address, prompt, tokens)}))
        thread.start()
        return thread

    before = send("long", 20)  # in flight when the capture begins: it is finished first
    late: list[threading.Thread] = []
    eventually(lambda: before.is_alive())
    live.capture(slow.name, progress=lambda name, _: late.append(send("short", 1)) if name == "dump" else None)
    for thread in (before, *late):
        thread.join(30)
    assert late
    assert (answers["long"], answers["short"]) == expected


def test_stopping_the_source(live: Live) -> None:
    source = live.start()
    answers = ask_all(source.address)
    live.capture(source.name, "stopped", stop_source=True)
    assert source.name not in [info.name for info in api.sandboxes(live.home)]
    (copy,) = live.restore("stopped")
    assert ask_all(copy.address) == answers


def test_a_program_without_engine(live: Live) -> None:
    counter = "import time\nfor n in range(10**9):\n    print(n, flush=True)\n    time.sleep(0.01)"
    source = live.start(command=(sys.executable, "-c", counter), engine="none")
    eventually(lambda: "9\n" in live.log(source.name))
    live.capture(source.name, "counter")
    seen = len(live.log(source.name).split())
    eventually(lambda: len(live.log(source.name).split()) > seen + 3)
    numbers = [int(word) for word in live.log(source.name).split()]
    assert numbers == list(range(len(numbers)))
    (copy,) = live.restore("counter")
    eventually(lambda: len(live.log(copy.name).split()) > 3)
    assert 9 < int(live.log(copy.name).split()[0]) <= seen


def test_captures_again_and_again(live: Live, source: api.SandboxInfo) -> None:
    answers = ask_all(source.address)
    for _ in range(3):
        name = live.fresh("again")
        live.capture("src", name)
        assert ask_all(source.address) == answers
        assert api.remove_snapshot(live.home, name) > BALLAST_MIB << 20
        assert not (live.home / "snapshots" / name).exists()
        assert not (live.home / "stamps" / f"{name}.json").exists()


class TestRefused:
    """What is said before the worker is disturbed."""

    @pytest.fixture(autouse=True)
    def _undisturbed(self, live: Live, source: api.SandboxInfo) -> Iterator[None]:
        answers, before = ask_all(source.address), live.traces_of_captures("src")
        report = live.sandbox("src").control.state()
        listed = [info.name for info in api.snapshots(live.home)]
        yield
        assert live.sandbox("src").control.state() == report
        assert live.traces_of_captures("src") == before
        assert [info.name for info in api.snapshots(live.home)] == listed
        assert ask_all(source.address) == answers

    def test_names(self, live: Live) -> None:
        assert reason_of(lambda: live.capture("nobody")) == "no-such-sandbox"
        assert reason_of(lambda: live.capture("src", "../escape")) == "bad-name"

    def test_a_name_that_is_taken(self, live: Live) -> None:
        taken = live.home / "snapshots" / "taken"
        taken.mkdir(mode=0o700)
        try:
            assert reason_of(lambda: live.capture("src", "taken")) == "snapshot-exists"
        finally:
            taken.rmdir()

    def test_no_criu(self, live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOTSTART_CRIU", str(tmp_path))
        assert reason_of(lambda: live.capture("src")) == "criu-missing"

    def test_a_worker_that_has_ended(self, live: Live) -> None:
        ended = live.start(command=("/bin/true",), engine="none")
        eventually(lambda: live.info(ended.name).state == "exited")
        assert reason_of(lambda: live.capture(ended.name)) == "sandbox-dead"
        live.stop(ended.name)


STARTS_FOR_EVER = """
import time
from hotstart.hooks.engines import plain
{attach}
time.sleep(1000)
"""
ATTACH = """
worker = plain.TableWorker(0, 4096, 0)
plain.attach(plain._Server(("0.0.0.0", 8000), plain._Handler), worker)
print("attached", flush=True)
"""


@pytest.mark.parametrize("attached", [False, True])
def test_an_engine_that_has_not_finished_starting(live: Live, attached: bool) -> None:
    name = live.fresh("starting")
    code = STARTS_FOR_EVER.format(attach=ATTACH if attached else "print('attached', flush=True)")
    from hotstart.snapshot_agent.sandbox.contract import SandboxSpec
    from tests.conftest import ENV

    api.run(live.home, SandboxSpec(name, (sys.executable, "-c", code), env=dict(ENV)))
    eventually(lambda: "attached" in live.log(name))
    before = live.traces_of_captures(name)
    assert reason_of(lambda: live.capture(name)) == "engine-not-ready"
    assert live.traces_of_captures(name) == before
    assert live.info(name).state == "starting"
    live.stop(name)


def test_a_restored_worker(live: Live, source: api.SandboxInfo) -> None:
    answers = ask_all(source.address)
    live.capture("src", "first")
    (copy,) = live.restore("first")
    before = live.traces_of_captures(copy.name)
    assert reason_of(lambda: live.capture(copy.name)) == "restored-worker"
    assert live.traces_of_captures(copy.name) == before
    assert ask_all(copy.address) == answers
