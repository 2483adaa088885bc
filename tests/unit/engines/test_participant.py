"""The worker's state machine, step by step, over a real control directory; the engine is one that records its calls."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hotstart import reasons
from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.findings import Finding
from hotstart.hooks.control.directory import ControlDirectory
from hotstart.hooks.control.protocol import Canary, CanaryToken, Order, Report, State, Verb, may_follow
from hotstart.hooks.engines import participant as module
from hotstart.hooks.engines.contract import Facts, KvRelease, canary_difference
from hotstart.hooks.engines.participant import Participant

TOKENS: tuple[CanaryToken, ...] = (
    CanaryToken(7, -0.5),
    CanaryToken(8, -1.5),
    CanaryToken(9, -2.5),
    CanaryToken(10, -3.5),
)


class Engine:
    """Answers at once; can be told to fail in one call, and what to do while it is asked how busy it is."""

    name = "recording"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.busy: Callable[[], int] = lambda: 0
        self.tokens = TOKENS
        self.is_open = True
        self.identity: dict[str, str] = {}

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if error := self.fails.get(name):
            raise error

    def processes(self) -> Sequence[int]:
        return [os.getpid()]

    def facts(self) -> Facts:
        return {"weights_bytes": 5}

    def close(self, deadline: Deadline) -> None:
        self._call("close")
        self.is_open = False

    def running(self) -> int:
        return self.busy()

    def canary(self, prompt: str, count: int, deadline: Deadline) -> Canary:
        self._call(f"canary {count}")
        return Canary(prompt, self.tokens[:count])

    def release_kv(self, deadline: Deadline) -> KvRelease:
        self._call("release_kv")
        return KvRelease(100, 96)

    def settle(self, deadline: Deadline) -> None:
        self._call("settle")

    def refresh_identity(self, identity: Mapping[str, str], deadline: Deadline) -> None:
        self._call("refresh_identity")
        self.identity = dict(identity)

    def recreate_kv(self, deadline: Deadline) -> None:
        self._call("recreate_kv")

    def open(self, deadline: Deadline) -> None:
        self._call("open")
        self.is_open = True


@dataclass(frozen=True)
class Recorded(ControlDirectory):
    """A control directory that remembers every report, and can refuse one."""

    reports: list[Report] = field(default_factory=list)
    refused: set[State] = field(default_factory=set)
    opened: list[str] = field(default_factory=list)

    def order(self) -> Order | None:
        self.opened.append("order")
        return super().order()

    def report(self, report: Report) -> None:
        if report.state in self.refused:
            raise OSError(28, "No space left on device")
        super().report(report)
        self.reports.append(report)


class Bench:
    """A participant that is ready, with everything around it."""

    def __init__(self, path: Path) -> None:
        ControlDirectory.create(path)
        self.path = path
        self.control = Recorded(path)
        self.engine = Engine()
        self.findings: list[Finding] = []
        self.participant = Participant(self.engine, self.control, lambda pids: self.findings)

    def get_ready(self) -> Bench:
        self.control.report(Report(State.STARTING, "boot", "recording"))
        self.participant.ready()
        self.participant.step()
        return self

    def give(
        self, verb: Verb, nonce: str, *, restored: bool = False, deadline_s: float = 5.0, canary: Canary | None = None
    ) -> Report:
        """Order, one step, and the last report."""
        self.control.give(Order(verb, nonce, restored, deadline_s, {"worker_id": "w2"}, canary))
        self.participant.step()
        return self.control.reports[-1]

    def states(self) -> list[tuple[str, str]]:
        return [(str(report.state), report.nonce) for report in self.control.reports]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "control").get_ready()


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROLLBACK_GRACE_S", 0.0)


def test_ready_tells_how_long_the_start_took(bench: Bench) -> None:
    report = bench.control.reports[-1]
    assert (report.state, report.nonce) == (State.READY, "boot")
    assert float(report.facts["cold_start_s"]) > 0
    assert report.facts["weights_bytes"] == 5


def test_a_capture_and_back(bench: Bench) -> None:
    quiesced = bench.give(Verb.QUIESCE, "n1")
    assert bench.engine.calls == ["close", "canary 4", "release_kv", "settle"]
    assert not bench.engine.is_open
    assert (quiesced.facts["kv_bytes"], quiesced.facts["kv_released_bytes"], quiesced.facts["running"]) == (100, 96, 0)
    assert {"drain_s", "canary_s", "release_kv_s", "settle_s", "audit_s", "total_s"} <= set(quiesced.facts)
    assert quiesced.canary is not None
    assert quiesced.canary.tokens == TOKENS
    resumed = bench.give(Verb.RESUME, "n1")
    assert bench.engine.calls[4:] == ["recreate_kv", "open"]
    assert resumed.canary is None
    assert bench.states()[2:] == [("quiescing", "n1"), ("quiesced", "n1"), ("resuming", "n1"), ("resumed", "n1")]


def test_every_recorded_sequence_is_legal(bench: Bench) -> None:
    bench.give(Verb.QUIESCE, "n1")
    bench.give(Verb.RESUME, "n1")
    bench.engine.fails["settle"] = ValueError("no")
    bench.give(Verb.QUIESCE, "n2")
    bench.give(Verb.RESUME, "n2")
    states = [report.state for report in bench.control.reports]
    assert all(may_follow(before, after) for before, after in itertools.pairwise(states))


def test_a_copy_renews_itself_before_it_serves(bench: Bench) -> None:
    quiesced = bench.give(Verb.QUIESCE, "n1")
    resumed = bench.give(Verb.RESUME, "n2", restored=True, canary=quiesced.canary)
    assert bench.engine.calls[4:] == ["refresh_identity", "recreate_kv", "canary 1", "open"]
    assert bench.engine.identity == {"worker_id": "w2"}
    assert resumed.canary == Canary(quiesced.canary.prompt, TOKENS[:1])  # type: ignore[union-attr]
    assert {"identity_s", "recreate_kv_s", "canary_s", "open_s"} <= set(resumed.facts)


@pytest.mark.parametrize("tokens", [(CanaryToken(6, -0.5),), (CanaryToken(7, -0.502),), (CanaryToken(7, math.nan),)])
def test_a_copy_that_computes_otherwise_never_serves(bench: Bench, tokens: tuple[CanaryToken, ...]) -> None:
    quiesced = bench.give(Verb.QUIESCE, "n1")
    bench.engine.tokens = tokens
    report = bench.give(Verb.RESUME, "n2", restored=True, canary=quiesced.canary)
    assert (report.state, report.reason) == (State.FAILED, "canary-mismatch")
    assert not bench.engine.is_open


def test_the_last_digits_may_differ() -> None:
    assert canary_difference(Canary("p", (CanaryToken(7, -0.5),)), Canary("p", (CanaryToken(7, -0.5009),))) == ""
    assert canary_difference(Canary("p", ()), Canary("p", ())) != ""


def test_an_order_is_carried_out_once(bench: Bench) -> None:
    bench.give(Verb.QUIESCE, "n1")
    bench.give(Verb.RESUME, "n1")
    before = len(bench.control.reports)
    bench.participant.step()
    bench.give(Verb.QUIESCE, "n1")  # the agent repeats an old one
    bench.give(Verb.RESUME, "n1")
    assert len(bench.control.reports) == before


def test_an_order_of_an_earlier_process_is_not_carried_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "control")
    bench.control.give(Order(Verb.QUIESCE, "old"))
    bench.participant.start()
    bench.participant.ready()
    deadline = Deadline.after(5, "ready")
    bench.control.wait_for({State.READY}, "boot", deadline, lambda: None)
    bench.control.give(Order(Verb.RESUME, "new"))
    bench.control.wait_for({State.RESUMED}, "new", deadline, lambda: None)
    assert "old" not in [nonce for _, nonce in bench.states()]


def test_busy_worker_serves_on(bench: Bench) -> None:
    bench.engine.busy = lambda: 3
    report = bench.give(Verb.QUIESCE, "n1", deadline_s=0.05)
    assert (report.state, report.reason) == (State.FAILED, "quiesce-busy")
    assert "3 requests" in report.detail
    assert bench.engine.is_open
    assert "canary 4" not in bench.engine.calls


def test_the_agent_may_change_its_mind_while_requests_drain(bench: Bench) -> None:
    def busy() -> int:
        bench.control.give(Order(Verb.RESUME, "n1"))
        return 1

    bench.engine.busy = busy
    report = bench.give(Verb.QUIESCE, "n1")
    assert (report.state, report.reason) == (State.FAILED, "interrupted")
    bench.participant.step()
    assert bench.states()[-1] == ("resumed", "n1")
    assert bench.engine.is_open


@pytest.mark.parametrize("call", ["close", "canary 4", "release_kv", "settle"])
def test_whatever_fails_the_worker_serves_on(bench: Bench, call: str) -> None:
    bench.engine.fails[call] = ValueError("boom")
    report = bench.give(Verb.QUIESCE, "n1")
    assert (report.state, report.reason, report.detail) == (State.FAILED, "quiesce-failed", "ValueError: boom")
    assert bench.engine.is_open
    assert bench.engine.calls[-2:] == ["recreate_kv", "open"]
    assert bench.give(Verb.RESUME, "n1").state is State.RESUMED
    del bench.engine.fails[call]
    assert bench.give(Verb.QUIESCE, "n2").state is State.QUIESCED


def test_an_error_with_a_reason_keeps_it(bench: Bench) -> None:
    bench.engine.fails["close"] = HotstartError(reasons.ENGINE_UNSUPPORTED, "data parallelism")
    report = bench.give(Verb.QUIESCE, "n1")
    assert (report.reason, report.detail) == ("engine-unsupported", "data parallelism")


def test_what_the_audit_forbids_is_not_captured(bench: Bench) -> None:
    bench.findings = [
        Finding(reasons.HIDDEN_PROCESS, "pid 1", "hidden", "", fatal=False),
        Finding(reasons.IO_URING, "pid 2 (x)", "descriptor 4 is an io_uring", "none"),
        Finding(reasons.TRACED, "pid 3 (y)", "traced", "none"),
    ]
    report = bench.give(Verb.QUIESCE, "n1")
    assert (report.state, report.reason) == (State.FAILED, "io-uring")
    assert report.detail == "pid 2 (x): descriptor 4 is an io_uring (and 1 more)"
    assert bench.engine.is_open


def test_what_the_audit_only_mentions_is_captured(bench: Bench) -> None:
    bench.findings = [Finding(reasons.HIDDEN_PROCESS, "pid 1", "hidden", "", fatal=False)]
    assert bench.give(Verb.QUIESCE, "n1").state is State.QUIESCED


def test_resume_of_a_worker_that_never_saw_the_quiesce(bench: Bench) -> None:
    assert bench.give(Verb.RESUME, "n1").state is State.RESUMED
    assert bench.engine.calls == []


def test_a_serving_worker_is_no_copy(bench: Bench) -> None:
    report = bench.give(Verb.RESUME, "n1", restored=True)
    assert (report.state, report.reason) == (State.FAILED, "resume-failed")
    assert bench.engine.is_open
    assert bench.engine.calls == []
    assert bench.give(Verb.QUIESCE, "n2").state is State.QUIESCED


def test_a_rest_that_cannot_be_told_is_no_rest(bench: Bench) -> None:
    bench.control.refused.add(State.QUIESCED)
    report = bench.give(Verb.QUIESCE, "n1")
    assert (report.state, report.reason) == (State.FAILED, "quiesce-failed")
    assert bench.engine.is_open


def test_a_failing_resume_says_so_and_can_be_tried_again(bench: Bench) -> None:
    bench.give(Verb.QUIESCE, "n1")
    bench.engine.fails["open"] = OSError("no door")
    report = bench.give(Verb.RESUME, "n1")
    assert (report.state, report.reason) == (State.FAILED, "resume-failed")
    bench.engine.fails.clear()
    assert bench.give(Verb.RESUME, "n1b").state is State.RESUMED
    assert bench.engine.is_open


def test_a_new_agent_finds_the_worker_at_rest_and_orders_a_rest_of_its_own(bench: Bench) -> None:
    bench.give(Verb.QUIESCE, "n1")
    bench.give(Verb.QUIESCE, "n2")
    assert bench.states()[-4:] == [("resuming", "n1"), ("resumed", "n1"), ("quiescing", "n2"), ("quiesced", "n2")]


@pytest.mark.usefixtures("no_grace")
def test_a_worker_whose_agent_died_serves_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bench.give(Verb.QUIESCE, "n1", deadline_s=1.0)
    now[0] += 1e6  # frozen for days, or awake on another machine: one poll is one poll
    bench.participant.step()
    now[0] -= 2e6
    bench.participant.step()
    assert bench.states()[-1] == ("quiesced", "n1")
    for _ in range(12):
        now[0] += 0.1
        bench.participant.step()
    assert bench.states()[-1] == ("resumed", "n1")
    assert "so the worker did" in bench.control.reports[-1].detail
    assert bench.engine.is_open


@pytest.mark.usefixtures("no_grace")
def test_a_copy_whose_agent_died_never_serves_as_the_source(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bench.give(Verb.QUIESCE, "n1", deadline_s=1.0)
    bench.path.rename(bench.path.with_name("source"))
    ControlDirectory.create(bench.path)
    for _ in range(100):
        now[0] += 0.1
        bench.participant.step()
    assert bench.states()[-1] == ("quiesced", "n1")
    assert not bench.engine.is_open
    assert bench.give(Verb.RESUME, "n2", restored=True).state is State.RESUMED  # its agent came after all


@pytest.mark.parametrize("copy", [False, True])
def test_a_worker_notices_that_its_agent_let_the_lock_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, copy: bool
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def live(seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            now[0] += 0.05
            bench.participant.step()

    with bench.control.hold() as alone:
        assert alone
        with ControlDirectory(bench.path).hold() as another:
            assert not another
        bench.control.give(Order(Verb.QUIESCE, "n1", deadline_s=60.0, held=True))
        live(20)
        assert bench.states()[-1] == ("quiesced", "n1")
        if copy:  # a copy wakes up in a directory that nobody holds
            bench.path.rename(bench.path.with_name("source"))
            ControlDirectory.create(bench.path)
            live(20)
            assert bench.states()[-1] == ("quiesced", "n1")
    live(1)
    assert bench.states()[-1] == (("quiesced", "n1") if copy else ("resumed", "n1"))
    assert bench.engine.is_open is not copy


def test_a_worker_at_rest_opens_nothing(bench: Bench) -> None:
    """It may be frozen in any poll, and a descriptor of the order could not be opened again in a copy."""
    bench.give(Verb.QUIESCE, "n1")
    bench.control.opened.clear()
    for _ in range(20):
        bench.participant.step()
    assert bench.control.opened == []
    assert bench.give(Verb.RESUME, "n2").state is State.RESUMED
    assert bench.control.opened == ["order"]


def test_what_a_killed_agent_left_half_written_is_swept(bench: Bench) -> None:
    (bench.path / "agent" / ".order.0123456789ab.tmp").write_bytes(b"{")
    with bench.control.hold():
        assert list((bench.path / "agent").iterdir()) == []


def test_a_full_disk_does_not_keep_a_worker_from_serving_again(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    bench.give(Verb.QUIESCE, "n1")
    bench.control.refused.update({State.RESUMING, State.RESUMED})
    bench.give(Verb.RESUME, "n2")
    assert bench.engine.is_open
    assert bench.states()[-1] == ("quiesced", "n1")
    assert "cannot be reported yet" in capfd.readouterr().err
    bench.participant.step()
    bench.control.refused.clear()
    bench.participant.step()
    assert bench.states()[-1] == ("resumed", "n2")
    assert len([report for report in bench.control.reports if report.state is State.RESUMED]) == 1
    bench.participant.step()
    assert bench.states()[-1] == ("resumed", "n2")
    assert bench.give(Verb.QUIESCE, "n3").state is State.QUIESCED


def test_a_file_that_is_no_order_is_passed_over(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    order = bench.path / "agent" / "order"
    for _ in range(3):
        order.write_bytes(b'{"verb": "dance"}')
        bench.participant.step()
    assert capfd.readouterr().err.count("the order cannot be read") == 1
    order.unlink()
    order.symlink_to("/etc/passwd")
    bench.participant.step()
    assert len(bench.control.reports) == 2
    assert bench.give(Verb.QUIESCE, "n1").state is State.QUIESCED
