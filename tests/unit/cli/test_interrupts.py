"""Signals: the first one raises, later ones are answered, and none matters once the operation is done."""

import os
import signal

import pytest

from hotstart.errors import HotstartError
from hotstart.reasons import INTERRUPTED
from hotstart.snapshot_agent.cli import interrupts
from tests.unit.cli.samples import copy, sandbox, snapshot


def kill(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_the_first_signal_raises_and_later_ones_do_not(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    with interrupts.raised():
        with pytest.raises(KeyboardInterrupt, match=number.name):
            kill(number)
        kill(number)
        kill(signal.SIGTERM)
    assert capfd.readouterr().err == "hotstart: still undoing\n" * 2
    assert signal.getsignal(number) is before


def test_what_is_done_is_not_interrupted() -> None:
    with interrupts.raised():
        interrupts.done()
        kill(signal.SIGTERM)
    with interrupts.raised(), pytest.raises(KeyboardInterrupt):
        kill(signal.SIGTERM)


def test_what_the_caller_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.raised():
            kill(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interruption_that_was_undone_says_so() -> None:
    with (
        pytest.raises(
            HotstartError, match="the capture was stopped by SIGINT and undone, the worker serves on"
        ) as caught,
        interrupts.raised(),
        interrupts.undone("the capture", "the worker serves on"),
    ):
        kill(signal.SIGINT)
    assert caught.value.reason is INTERRUPTED


def interrupted(*_args: object, **_kwargs: object) -> None:
    kill(signal.SIGTERM)


@pytest.mark.parametrize(
    ("arguments", "function", "words"),
    [
        (
            ["run", "--name", "x", "--", "serve"],
            "run",
            "the start was stopped by SIGTERM and undone, no sandbox is left",
        ),
        (["snapshot", "create", "x"], "create_snapshot", "the capture was stopped by SIGTERM and undone, the worker"),
        (["restore", "x"], "restore", "the restore was stopped by SIGTERM and undone, no copy is left"),
        (["stop", "x"], "stop", "stopped by SIGTERM before it was done"),
        (["snapshot", "rm", "x"], "remove_snapshot", "stopped by SIGTERM before it was done"),
        (["snapshot", "verify", "x"], "verify_snapshot", "stopped by SIGTERM before it was done"),
    ],
)
def test_each_verb_says_what_became_of_it(call, answers, arguments: list[str], function: str, words: str) -> None:
    answers(snapshots=[], damaged_snapshots={})
    answers(**{function: interrupted})
    called = call(*arguments)
    assert called.code == 130
    assert called.error_line().startswith(f"hotstart: interrupted: {words}")


def test_a_signal_after_the_end_changes_nothing(call, answers, monkeypatch) -> None:
    from hotstart.snapshot_agent.cli import output

    def late(*_args: object) -> None:
        kill(signal.SIGINT)

    monkeypatch.setattr(output, "table", late)
    answers(
        run=sandbox(),
        create_snapshot=snapshot(),
        restore=[copy()],
        snapshots=[],
        damaged_snapshots={},
        sandboxes=[],
    )
    for arguments in (["run", "--no-wait", "--", "serve"], ["snapshot", "create", "x"], ["restore", "x"]):
        assert call(*arguments).code == 0
