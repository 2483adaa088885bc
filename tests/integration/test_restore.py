"""Restore on the real engine: copies that answer as their source did, and a cold start wherever one cannot work."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from benchmarks.client import Answer
from hotstart.durable import write_file
from hotstart.hooks.control.start import SITE_PATH
from hotstart.hooks.engines.contract import CANARY_PROMPT
from hotstart.snapshot_agent import api
from hotstart.snapshot_agent.catalog import stamp
from hotstart.snapshot_agent.catalog.directory import DirectoryStore
from hotstart.snapshot_agent.catalog.manifest import Manifest, decode, encode
from hotstart.snapshot_agent.sandbox.contract import Volume
from tests.conftest import eventually
from tests.integration.live import Live, ask, ask_all, ask_patiently, identity, needs_criu, reason_of

BALLAST_MIB = 64
COUNTER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("bye", flush=True), sys.exit(7)))
for n in range(10**9):
    print(n, flush=True)
    time.sleep(0.02)
"""
DIES_AS_A_COPY = """
import os, sys
from hotstart.hooks.engines import plain
class Worker(plain.TableWorker):
    def refresh_identity(self, identity):
        if identity.get("hostname", "").startswith(sys.argv[1] if sys.argv[1:] else ""):
            if identity: os._exit(9)
        super().refresh_identity(identity)
plain.TableWorker = Worker
plain.main([])
"""

pytestmark = [pytest.mark.criu, needs_criu]


@dataclass(frozen=True)
class Captured:
    """A source that serves, its answers, and a snapshot of it."""

    live: Live
    source: api.SandboxInfo
    answers: list[Answer]
    snapshot: api.SnapshotInfo

    def restore(self, *names: str, **more: object) -> list[api.RestoreResult]:
        return self.live.restore(self.snapshot.name, *names, **more)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live((tmp_path_factory.mktemp("restore") / "home").resolve())
    try:
        yield live
    finally:
        live.close()


@pytest.fixture(scope="module")
def captured(live: Live) -> Captured:
    source = live.start("--ballast-mb", str(BALLAST_MIB), name="src")
    answers = ask_all(source.address)
    return Captured(live, source, answers, live.capture("src", "one"))


@pytest.fixture(autouse=True)
def _tidy(live: Live) -> Iterator[None]:
    """Every test's copies go away; what restores leave would be seen."""
    kept = {info.name for info in api.sandboxes(live.home)} | {"src"}
    yield
    live.stop(*(info.name for info in api.sandboxes(live.home) if info.name not in kept))
    assert live.traces_of_captures() == []


def states(directory: Path) -> dict[str, tuple[int, ...]]:
    """How every file looks, in all that a write would change."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        found[str(path)] = (status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns)
    return found


def test_three_copies_at_once_answer_as_their_source(captured: Captured) -> None:
    results = captured.restore(copies=3)
    assert [result.outcome for result in results] == ["restored"] * 3
    addresses = {result.address for result in results}
    assert len(addresses | {captured.source.address}) == 4
    for result in results:
        assert ask_all(result.address) == captured.answers
    assert ask_all(captured.source.address) == captured.answers


def test_copies_share_no_identity(captured: Captured) -> None:
    results = captured.restore(copies=3)
    found = [identity(address) for address in [captured.source.address, *(r.address for r in results)]]
    for key in ("worker_id", "random", "hostname"):
        assert len({str(who[key]) for who in found}) == 4, key
    assert [who["hostname"] for who in found[1:]] == [result.name for result in results]
    assert len({who["pid"] for who in found}) == 1  # the proof that these are copies at all


def test_verdicts_and_phases_are_told(captured: Captured) -> None:
    (result,) = captured.restore()
    assert {verdict["mode"] for verdict in result.verdicts} == {"mapped"}
    assert sum(verdict["mapped_bytes"] for verdict in result.verdicts) > BALLAST_MIB << 20
    names = {span["name"] for span in result.phases["spans"]}
    assert {"plan", "sandbox", "skeleton", "resume"} <= names
    assert result.phases["unaccounted_s"] < result.phases["total_s"] / 2
    assert captured.live.info(result.name).restored_from == "one"
    assert captured.live.info(result.name).state == "ready"


def test_restores_change_nothing_of_a_snapshot(captured: Captured) -> None:
    before = states(captured.snapshot.path)
    for _ in range(2):
        names = [result.name for result in captured.restore(copies=2)]
        captured.restore(force_copy=True)
        captured.live.stop(*names)
    assert states(captured.snapshot.path) == before
    assert api.verify_snapshot(captured.live.home, "one") == []
    assert states(captured.snapshot.path) == before


def test_a_copys_writes_stay_its_own(captured: Captured) -> None:
    first, second = captured.restore(copies=2)
    for address in (first.address, first.address):
        ask(address, "something that fills other slots of the KV cache", 200)
    assert ask_all(second.address) == captured.answers
    assert ask_all(first.address) == captured.answers


@pytest.mark.parametrize("when", ["restore", "capture"])
def test_copied_by_choice(captured: Captured, when: str) -> None:
    if when == "capture":
        captured.live.capture("src", "copied", force_copy=True)
        (result,) = captured.live.restore("copied")
    else:
        (result,) = captured.restore(force_copy=True)
    assert ask_all(result.address) == captured.answers
    for verdict in result.verdicts:
        assert (verdict["mode"], verdict["reason"], verdict["mapped_bytes"]) == ("copied", "copied-by-choice", 0)
    assert sum(verdict["copied_bytes"] for verdict in result.verdicts) > BALLAST_MIB << 20
    (mapped,) = captured.restore()
    assert ask_all(mapped.address) == captured.answers
    private = {info.name: info.private_bytes for info in api.sandboxes(captured.live.home, measure=True)}
    assert private[result.name] > BALLAST_MIB << 20
    assert private[mapped.name] * 4 < private[result.name]


def test_a_copied_copy_can_be_captured_again(captured: Captured) -> None:
    (first,) = captured.restore(force_copy=True)
    captured.live.capture(first.name, "second-generation", stop_source=True)
    (second,) = captured.live.restore("second-generation")
    assert ask_all(second.address) == captured.answers
    assert identity(second.address)["hostname"] == second.name


def test_requests_during_a_capture_are_answered(live: Live) -> None:
    from concurrent.futures import ThreadPoolExecutor

    source = live.start("--token-ms", "5", "--ballast-mb", "32")
    expected = ask_all(source.address)
    answered = 0
    with ThreadPoolExecutor(3) as pool:
        capture = pool.submit(live.capture, source.name, "busy")
        while not capture.done():
            assert [f.result(60) for f in [pool.submit(ask_all, source.address)]] == [expected]
            answered += 1
        capture.result()
    assert answered
    (copy,) = live.restore("busy")
    assert ask_all(copy.address) == expected


def test_a_copy_has_its_own_log(captured: Captured) -> None:
    live = captured.live
    source = live.start(command=(sys.executable, "-c", COUNTER), engine="none")
    eventually(lambda: "5\n" in live.log(source.name))
    live.capture(source.name, "counter", stop_source=True)
    (copy,) = live.restore("counter")
    eventually(lambda: len(live.log(copy.name).split()) > 5)
    numbers = [int(word) for word in live.log(copy.name).split()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] > 5
    # SIGTERM reaches the worker, and its own exit status comes out
    assert api.stop(live.home, copy.name, grace_s=10).exit_status == 7


def test_an_end_by_itself_is_the_sandboxs_end(captured: Captured) -> None:
    live = captured.live
    (copy,) = captured.restore()
    init = live.sandbox(copy.name).init_pid
    os.kill(init, signal.SIGTERM)
    eventually(lambda: live.info(copy.name).state == "exited")
    assert live.info(copy.name).exit_status == 0


def test_killing_one_copy_leaves_the_others(captured: Captured) -> None:
    first, second = captured.restore(copies=2)
    captured.live.stop(first.name)
    assert ask_all(second.address) == captured.answers


@pytest.mark.parametrize("more", [{"uid": 1000, "gid": 1000}, {"tmpfs": ("/tmp",)}], ids=["user", "tmpfs"])
def test_other_sandboxes(live: Live, more: dict[str, object]) -> None:
    # the system's interpreter: that of a virtual environment may lie where only root can go
    code = f"import sys; sys.path.append({SITE_PATH!r}); from hotstart.hooks.engines.plain import main; main()"
    source = live.start("--ballast-mb", "8", command=("python3", "-c", code), **more)
    expected = ask_all(source.address)
    root = Path(f"/proc/{live.sandbox(source.name).init_pid}/root")
    (root / "tmp/left-here").write_text("by the source")
    live.capture(source.name, f"of-{source.name}")
    assert ask_all(source.address) == expected
    live.stop(source.name)
    (copy,) = live.restore(f"of-{source.name}")
    assert ask_all(copy.address) == expected
    init = live.sandbox(copy.name).init_pid
    assert Path(f"/proc/{init}/root/tmp/left-here").read_text() == "by the source"
    if "uid" in more:
        from hotstart.snapshot_agent.sandbox import view

        assert {Path(f"/proc/{task.pid}").stat().st_uid for task in view.tree(init)} == {1000}


def test_names(captured: Captured) -> None:
    assert reason_of(lambda: captured.live.restore("nothing")) == "no-such-snapshot"
    assert reason_of(lambda: captured.restore("Bad/Name")) == "bad-name"
    before = [info.name for info in api.sandboxes(captured.live.home)]
    fresh = captured.live.fresh()
    for cold_start in (True, False):
        assert reason_of(lambda: captured.restore(fresh, "src", cold_start=cold_start)) == "sandbox-exists"  # noqa: B023
        assert reason_of(lambda: captured.restore(fresh, fresh, cold_start=cold_start)) == "sandbox-exists"  # noqa: B023
        assert [info.name for info in api.sandboxes(captured.live.home)] == before
    assert ask_all(captured.source.address) == captured.answers


# --- what cannot be restored ------------------------------------------------------------------------------------------


def rewritten(live: Live, name: str, change: object, *, remove: str = "") -> None:
    """Change a snapshot's manifest (and remove a file), as if it had been captured so."""
    path = live.home / "snapshots" / name / "manifest.json"
    manifest = decode(path.read_bytes())
    if remove:
        (path.parent / remove).unlink()
        manifest = msgspec.structs.replace(manifest, files=[f for f in manifest.files if f.path != remove])
    if callable(change):
        manifest = change(manifest)
    write_file(path, encode(manifest), mode=0o600)
    with DirectoryStore(live.home).open(name) as handle:
        assert stamp.write(live.home, handle)


def other_canary(manifest: Manifest) -> Manifest:
    """The same manifest with another first token of the canary."""
    canary = manifest.engine.canary
    assert canary is not None
    assert canary.prompt == CANARY_PROMPT
    first = msgspec.structs.replace(canary.tokens[0], token_id=canary.tokens[0].token_id + 1)
    changed = msgspec.structs.replace(canary, tokens=[first, *canary.tokens[1:]])
    return msgspec.structs.replace(manifest, engine=msgspec.structs.replace(manifest.engine, canary=changed))


class TestColdStart:
    """Each of these must end in a worker that serves, and in a reason."""

    def check(self, live: Live, snapshot: str, reason: str, answers: list[Answer], **more: object) -> None:
        """A cold start for ``reason`` that serves; without a cold start the reason is raised and nothing is left."""
        before = [info.name for info in api.sandboxes(live.home)]
        assert reason_of(lambda: live.restore(snapshot, copies=2, **more)) == reason
        assert [info.name for info in api.sandboxes(live.home)] == before
        assert live.traces_of_captures() == []
        results = live.restore(snapshot, copies=2, cold_start=True, **more)
        for result in results:
            assert (result.outcome, result.reason) == ("cold", reason), result
            assert result.detail
            assert ask_patiently(result.address) == answers
            info = live.info(result.name)
            assert info.state == "cold"
            assert reason in info.reason
            assert info.restored_from == snapshot
            assert f"restore failed ({reason}: " in live.log(result.name)
            assert identity(result.address)["hostname"] == result.name
        live.stop(*(result.name for result in results))
        assert live.traces_of_captures() == []

    def test_a_damaged_snapshot(self, captured: Captured) -> None:
        live = captured.live
        info = live.capture("src", "damaged")
        with (info.path / "memory").open("r+b") as file:
            at = os.lseek(file.fileno(), 0, os.SEEK_DATA)
            byte = os.pread(file.fileno(), 1, at)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 1]), at)
        self.check(live, "damaged", "snapshot-damaged", captured.answers)

    def test_a_file_that_is_gone(self, captured: Captured) -> None:
        info = captured.live.capture("src", "incomplete")
        (info.path / "skeleton/pstree.img").unlink()
        self.check(captured.live, "incomplete", "snapshot-damaged", captured.answers)

    def test_criu_that_fails(self, captured: Captured) -> None:
        live = captured.live
        info = live.capture("src", "no-images")
        gone = sorted(info.path.glob("skeleton/mm-*.img"))[-1]
        rewritten(live, "no-images", None, remove=str(gone.relative_to(info.path)))
        self.check(live, "no-images", "criu-restore-failed", captured.answers)

    def test_criu_that_dies(self, captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = Path(os.environ["HOTSTART_CRIU"])
        tree = tmp_path / "tree"
        import shutil
        import subprocess

        from hotstart.snapshot_agent.criu.bundle import locate

        bundle = locate(real)
        (tree / bundle.binary).parent.mkdir(parents=True)
        (tree / bundle.loader).parent.mkdir(parents=True, exist_ok=True)
        source = tmp_path / "criu.c"
        source.write_text(
            "#include <stdio.h>\n#include <string.h>\n"
            'int main(int n, char **v) { if (strcmp(v[n - 1], "--version")) return 3; puts("Version: 4.2.1"); }\n'
        )
        subprocess.run(["cc", "-static", "-o", str(tree / bundle.binary), str(source)], check=True)
        shutil.copy(tree / bundle.binary, tree / bundle.loader)  # takes the loader's place: starts and ends
        monkeypatch.setenv("HOTSTART_CRIU", str(tree))
        self.check(captured.live, "one", "criu-unusable", captured.answers)

    def test_no_criu(self, captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOTSTART_CRIU", str(tmp_path))
        self.check(captured.live, "one", "criu-missing", captured.answers)

    def test_another_canary(self, captured: Captured) -> None:
        captured.live.capture("src", "canary")
        rewritten(captured.live, "canary", other_canary)
        self.check(captured.live, "canary", "canary-mismatch", captured.answers)
        assert ask_all(captured.source.address) == captured.answers

    def test_too_little_time(self, captured: Captured) -> None:
        self.check(captured.live, "one", "deadline", captured.answers, timeout_s=0.001)

    def test_a_missing_volume(self, live: Live, tmp_path: Path) -> None:
        volume = tmp_path / "volume"
        volume.mkdir()
        source = live.start(volumes=(Volume(str(volume), "/data"),))
        live.capture(source.name, "volume", stop_source=True)
        volume.rmdir()
        before = [info.name for info in api.sandboxes(live.home)]
        assert reason_of(lambda: live.restore("volume")) == "missing-mount"
        # the cold start needs the volume just as much: it cannot be made, and the reason is the volume
        assert reason_of(lambda: live.restore("volume", cold_start=True)) == "missing-mount"
        assert [info.name for info in api.sandboxes(live.home)] == before
        volume.mkdir()
        (copy,) = live.restore("volume")
        assert ask_all(copy.address)

    def test_a_worker_that_dies_as_it_wakes_up(self, live: Live) -> None:
        source = live.start(command=(sys.executable, "-c", DIES_AS_A_COPY))
        expected = ask_all(source.address)
        live.capture(source.name, "dies")
        live.stop(source.name)
        assert reason_of(lambda: live.restore("dies")) == "sandbox-dead"
        assert api.sandboxes(live.home) == [info for info in api.sandboxes(live.home) if info.name == "src"]
        (result,) = live.restore("dies", cold_start=True)
        assert (result.outcome, result.reason) == ("cold", "sandbox-dead")
        assert "status 9" in result.detail
        assert ask_patiently(result.address) == expected
        assert live.info(result.name).state == "cold"

    def test_a_copy_that_fails_beside_one_that_works(self, live: Live) -> None:
        source = live.start(command=(sys.executable, "-c", DIES_AS_A_COPY, "sick"))
        expected = ask_all(source.address)
        live.capture(source.name, "half", stop_source=True)
        sick, sound = live.restore("half", live.fresh("sick"), live.fresh("sound"))
        assert [result.outcome for result in (sick, sound)] == ["removed", "restored"]
        assert sick.reason == "sandbox-dead"
        assert sick.name not in [info.name for info in api.sandboxes(live.home)]
        assert ask_all(sound.address) == expected
        cold, other = live.restore("half", live.fresh("sick"), live.fresh("sound"), cold_start=True)
        assert [result.outcome for result in (cold, other)] == ["cold", "restored"]
        assert ask_patiently(cold.address) == ask_all(other.address) == expected


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("phase", ["plan", "restore"])
def test_an_interrupted_restore_leaves_nothing(captured: Captured, copies: int, phase: str) -> None:
    live = captured.live
    before = [info.name for info in api.sandboxes(live.home)]

    def interrupt(name: str, fraction: float) -> None:
        if phase == "restore" or name == "verify":
            raise KeyboardInterrupt

    (live.home / "stamps/one.json").unlink()  # so that the plan reads everything, and tells of it
    with pytest.raises(KeyboardInterrupt):
        captured.restore(copies=copies, progress=interrupt)
    assert [info.name for info in api.sandboxes(live.home)] == before
    assert captured.restore()[0].outcome == "restored"


@pytest.mark.parametrize("copies", [1, 3])
def test_a_signal_in_the_middle_of_a_restore(captured: Captured, copies: int) -> None:
    live = captured.live
    before = [info.name for info in api.sandboxes(live.home)]
    began = time.monotonic()
    live.stop(*(result.name for result in captured.restore(copies=copies)))
    whole = time.monotonic() - began
    interrupted = 0
    for fraction in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        timer = threading.Timer(whole * fraction, signal.raise_signal, (signal.SIGINT,))
        timer.start()
        results = None
        try:
            results = captured.restore(copies=copies)
            time.sleep(10)
        except KeyboardInterrupt:
            interrupted += results is None
        timer.join()
        if results:  # it was done before the signal came
            live.stop(*(result.name for result in results))
        assert [info.name for info in api.sandboxes(live.home)] == before
        eventually(lambda: live.traces_of_captures() == [])  # a helper that lost its agent before it had a plan ends
    assert interrupted
