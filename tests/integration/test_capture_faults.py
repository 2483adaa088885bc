"""Captures that fail or are interrupted, at every step: the source serves on, nothing is listed, nothing is left."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.client import Answer
from hotstart.errors import HotstartError
from hotstart.snapshot_agent import api
from hotstart.snapshot_agent.capture import freeze
from hotstart.snapshot_agent.capture.quiesce import ANSWER_SECONDS
from hotstart.snapshot_agent.criu.bundle import locate
from tests.conftest import eventually
from tests.integration.cli_program import TIMEOUT_S, Program
from tests.integration.live import PLAIN, PROMPTS, Live, ask, ask_all, helpers, needs_criu, reason_of

BALLAST_MIB = 32
PHASES = ("preflight", "quiesce", "dump", "resume", "convert", "digest", "publish")
BACK_S = 15.0
"""A source whose agent was killed serves again within this time."""

pytestmark = [pytest.mark.criu, needs_criu]


@dataclass
class Source:
    """A worker, how it answered before, and what there was to see of it."""

    live: Live
    info: api.SandboxInfo
    answers: list[Answer]
    before: list[str]
    listed: list[str]

    @classmethod
    def start(cls, live: Live, *arguments: str, **more: object) -> Source:
        """Start one and look at it."""
        info = live.start(*arguments, **more)
        listed = [snapshot.name for snapshot in api.snapshots(live.home)]
        return cls(live, info, ask_all(info.address), live.traces_of_captures(info.name), listed)

    def appeared(self, but: str = "\0") -> list[str]:
        """What was not there before, apart from names that hold ``but``."""
        found = set(self.live.traces_of_captures(self.info.name)) - set(self.before)
        return sorted(name for name in found if but not in name)

    def is_as_before(self) -> None:
        """Assert that nothing of a capture is left and that it serves."""
        assert ask_all(self.info.address) == self.answers
        assert [snapshot.name for snapshot in api.snapshots(self.live.home)] == self.listed
        assert api.damaged_snapshots(self.live.home) == {}
        with contextlib.suppress(AssertionError):  # a helper that was interrupted before it had a plan ends by itself
            eventually(lambda: not self.appeared(), 2.0)
        assert self.appeared() == []
        assert self.live.traces_of_captures(self.info.name) == self.before
        # a report that a full disk did not take is told again within moments
        eventually(lambda: self.live.info(self.info.name).state == "ready", 2.0)

    def can_be_captured(self) -> None:
        """Assert that the next capture works, and its copies too."""
        name = self.live.fresh("after")
        self.live.capture(self.info.name, name)
        (copy,) = self.live.restore(name)
        assert ask_all(copy.address) == self.answers
        self.live.stop(copy.name)
        api.remove_snapshot(self.live.home, name)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live((tmp_path_factory.mktemp("faults") / "home").resolve())
    try:
        yield live
    finally:
        live.close()


@pytest.fixture(scope="module")
def source(live: Live) -> Source:
    """One source for all of them: what one fault breaks, the next test sees."""
    return Source.start(live, "--ballast-mb", str(BALLAST_MIB), name="src")


def raise_at(phase: str, error: BaseException) -> Callable[[str, float], None]:
    def told(name: str, _fraction: float) -> None:
        if name == phase:
            raise error

    return told


@pytest.mark.parametrize("stop_source", [False, True], ids=["keep", "stop"])
@pytest.mark.parametrize("phase", PHASES)
def test_an_interrupt_in_each_phase(source: Source, phase: str, stop_source: bool) -> None:
    if stop_source and phase == "resume":
        pytest.skip("a source that is to be stopped is not resumed")
    with pytest.raises(KeyboardInterrupt):
        source.live.capture("src", stop_source=stop_source, progress=raise_at(phase, KeyboardInterrupt()))
    source.is_as_before()


def test_an_interrupt_in_the_middle_of_anything(source: Source) -> None:
    """A real signal at moments that no phase announces."""
    began = time.monotonic()
    source.live.capture("src", name := source.live.fresh("whole"))
    whole = time.monotonic() - began
    api.remove_snapshot(source.live.home, name)
    interrupted = 0
    for step in range(12):
        timer = threading.Timer(whole * (step + 0.5) / 12, signal.raise_signal, (signal.SIGINT,))
        timer.start()
        info = None
        try:
            info = source.live.capture("src")
            time.sleep(10)
        except KeyboardInterrupt:
            interrupted += info is None
        timer.join()
        for snapshot in api.snapshots(source.live.home):  # published before the signal came
            assert api.verify_snapshot(source.live.home, snapshot.name) == []
            api.remove_snapshot(source.live.home, snapshot.name)
        source.is_as_before()
    assert interrupted > 6
    source.can_be_captured()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_program(source: Source, number: signal.Signals) -> None:
    program = Program(source.live.home)
    for delay_s in (0.0, 0.05, 0.1, 0.2):
        process = program.start("snapshot", "create", "src")
        assert process.stderr is not None
        for line in process.stderr:
            if line == "hotstart: quiesce\n":
                break
        time.sleep(delay_s)
        process.send_signal(number)
        _, err = process.communicate(timeout=TIMEOUT_S)
        if process.returncode == 0:  # it was done before the signal came
            assert delay_s
            api.remove_snapshot(source.live.home, "src")
        else:
            assert process.returncode == 130, err
        source.is_as_before()


@pytest.mark.parametrize("phase", ["quiesce", "dump", "convert"])
@pytest.mark.parametrize("delay_s", [0.0, 0.04])
def test_the_program_is_killed(source: Source, phase: str, delay_s: float) -> None:
    program = Program(source.live.home)
    process = program.start("snapshot", "create", "src")
    assert process.stderr is not None
    for line in process.stderr:
        if line == f"hotstart: {phase}\n":
            break
    time.sleep(delay_s)
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    began = time.monotonic()
    assert ask(source.info.address, PROMPTS[0]) == source.answers[0]
    assert time.monotonic() - began < BACK_S
    # CRIU ends by itself, and so does the helper that lost its agent; what was staged goes with the next look
    eventually(lambda: api.snapshots(source.live.home) == [] and not source.appeared(but=".order."), BACK_S)
    source.can_be_captured()  # which sweeps an order that was half written
    source.is_as_before()


def test_a_progress_callback_that_fails(source: Source) -> None:
    with pytest.raises(RuntimeError, match="of the caller"):
        source.live.capture("src", progress=raise_at("convert", RuntimeError("of the caller")))
    source.is_as_before()


# --- full disks -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Live]:
    """A home with room for one sandbox and one snapshot of it, hardly more."""
    home = (tmp_path / "small").resolve()
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m,mode=700", "hotstart-test", str(home)], check=True)
    live = Live(home)
    try:
        yield live
    finally:
        try:
            for info in api.sandboxes(home):
                live.stop(info.name)
        finally:
            subprocess.run(["umount", "-l", str(home)], check=True)


def fill(home: Path, *, leave: int = 0) -> Path:
    """Take all the room there is, but for ``leave`` bytes."""
    filler = home / "filler"
    room = os.statvfs(home)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(4096, room.f_bavail * room.f_frsize - leave))
    return filler


def test_a_full_disk_is_seen_before_the_worker_is_touched(small: Live) -> None:
    source = Source.start(small, "--ballast-mb", str(BALLAST_MIB))
    report = small.sandbox(source.info.name).control.state()
    filler = fill(small.home, leave=8 << 20)
    assert reason_of(lambda: small.capture(source.info.name)) == "disk-full"
    assert small.sandbox(source.info.name).control.state() == report
    filler.unlink()
    source.is_as_before()
    source.can_be_captured()


def test_the_room_that_counts_is_where_snapshots_lie(small: Live) -> None:
    source = Source.start(small, "--ballast-mb", str(BALLAST_MIB))
    apart = small.home / "snapshots"
    apart.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "hotstart-test", str(apart)], check=True)
    try:
        assert reason_of(lambda: small.capture(source.info.name)) == "disk-full"
        assert source.live.info(source.info.name).state == "ready"
    finally:
        subprocess.run(["umount", "-l", str(apart)], check=True)


@pytest.mark.parametrize("leave_mib", [0, 4])
@pytest.mark.parametrize("phase", ["dump", "convert", "digest", "publish"])
def test_the_disk_fills_up_in_the_middle(small: Live, phase: str, leave_mib: int) -> None:
    source = Source.start(small, "--ballast-mb", str(BALLAST_MIB))

    def told(name: str, _fraction: float) -> None:
        if name == phase and not (small.home / "filler").exists():
            fill(small.home, leave=leave_mib << 20)

    try:
        info = small.capture(source.info.name, "late", stop_source=phase == "convert", progress=told)
    except HotstartError as error:
        assert error.reason.code == "disk-full", error
        (small.home / "filler").unlink()
    else:
        assert phase in ("digest", "publish")
        assert leave_mib  # a manifest needs little room
        (small.home / "filler").unlink()
        assert api.verify_snapshot(small.home, info.name) == []
        api.remove_snapshot(small.home, info.name)
    source.is_as_before()
    source.can_be_captured()


# --- CRIU fails -------------------------------------------------------------------------------------------------------


def test_criu_cannot_write_its_images(source: Source) -> None:
    """CRIU itself fails in the middle of its dump, with its parasite in every process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def told(name: str, _fraction: float) -> None:
        if name == "dump":
            resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, before[1]))

    try:
        with pytest.raises(HotstartError) as caught:
            source.live.capture("src", progress=told)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.reason.code == "criu-dump-failed"
    assert "CRIU: " in caught.value.detail
    source.is_as_before()
    source.can_be_captured()


def tree_with(tmp_path: Path, program: str) -> Path:
    """A CRIU tree whose loader is ``program`` (C), which gets the command line that CRIU would."""
    bundle = locate(Path(os.environ["HOTSTART_CRIU"]))
    tree = tmp_path / "tree"
    (tmp_path / "criu.c").write_text(program)
    for path in (bundle.loader, bundle.binary):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-static", "-o", str(tree / path), str(tmp_path / "criu.c")], check=True)
    return tree


@pytest.mark.parametrize(
    "does", ["return 3;", "raise(SIGKILL);", "sleep(1000);"], ids=["fails", "is killed", "never answers"]
)
def test_criu_that_does_not_work(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    includes = "".join(f"#include <{name}.h>\n" for name in ("stdio", "string", "signal", "unistd"))
    tree = tree_with(
        tmp_path,
        includes + "int main(int n, char **v) {"
        'if (!strcmp(v[n - 1], "--version")) return puts("Version: 4.2.1"), 0;'
        f'if (!strcmp(v[n - 1], "check")) return 1; {does} return 1; }}',
    )
    with monkeypatch.context() as patch:
        patch.setenv("HOTSTART_CRIU", str(tree))
        patch.setattr(freeze, "UNDO_SECONDS", 1.0)
        expected = "deadline" if "sleep" in does else "criu-unusable"
        assert reason_of(lambda: source.live.capture("src", timeout_s=2.0 if "sleep" in does else 30.0)) == expected
    source.is_as_before()
    source.can_be_captured()


# --- the worker and its callers ---------------------------------------------------------------------------------------


def test_a_busy_worker(live: Live) -> None:
    source = Source.start(live, "--token-ms", "5")
    slow = ask(source.info.address, "slow", 10)
    answers: list[Answer] = []
    request = threading.Thread(target=lambda: answers.append(ask(source.info.address, "slow", 500)))
    request.start()
    time.sleep(0.2)
    began = time.monotonic()
    assert reason_of(lambda: live.capture(source.info.name, timeout_s=0.5)) == "quiesce-busy"
    assert time.monotonic() - began < ANSWER_SECONDS
    assert request.is_alive()
    request.join(30)
    assert answers[0].token_ids[:10] == slow.token_ids  # it was not cut short, nor disturbed
    assert len(answers[0].token_ids) == 500
    assert live.sandbox(source.info.name).state() == "ready"
    source.is_as_before()
    live.stop(source.info.name)


def test_two_captures_at_once(source: Source) -> None:
    entered, leave = threading.Event(), threading.Event()

    def told(name: str, _fraction: float) -> None:
        if name == "quiesce":
            entered.set()
            assert leave.wait(30)

    name = source.live.fresh("first")
    first = threading.Thread(target=source.live.capture, args=("src", name), kwargs={"progress": told})
    first.start()
    try:
        assert entered.wait(30)
        assert reason_of(lambda: source.live.capture("src")) == "capture-busy"
        done = Program(source.live.home)("snapshot", "create", "src")
        done.failed(44, "capture-busy")
    finally:
        leave.set()
        first.join(60)
    assert api.verify_snapshot(source.live.home, name) == []
    api.remove_snapshot(source.live.home, name)
    source.is_as_before()


def test_the_worker_dies_during_its_capture(live: Live) -> None:
    source = Source.start(live, "--token-ms", "1")
    init = live.sandbox(source.info.name).init_pid

    def told(name: str, _fraction: float) -> None:
        if name == "dump":
            os.kill(init, signal.SIGKILL)
            eventually(lambda: not live.sandbox(source.info.name).lives())

    with pytest.raises(HotstartError) as caught:
        live.capture(source.info.name, progress=told)
    assert caught.value.reason.code == "sandbox-dead", caught.value
    assert [snapshot.name for snapshot in api.snapshots(live.home)] == source.listed
    live.stop(source.info.name)
    assert live.traces_of_captures() == []


def test_nothing_of_captures_runs_on(source: Source) -> None:
    assert helpers() == []
    assert PLAIN[0] == sys.executable
    source.is_as_before()
