"""``hotstart restore``: names of copies, outcomes, reasons, exit codes."""

import re

import pytest

from hotstart.snapshot_agent.cli.restore import mode, reasons
from tests.unit.cli.samples import copy, sandbox

PRIVATE = [sandbox("web"), sandbox("web-1", private_bytes=1 << 20), sandbox("other")]
FAILED = {"outcome": "cold", "reason": "criu-restore-failed", "detail": "CRIU: no", "verdicts": []}


def restore_answer(*changes):
    """The n-th copy gets the n-th changes."""

    def restore(home, snapshot, names, **kwargs):
        kwargs["progress"]("restore", 0.0)
        results = []
        for number, name in enumerate(names):
            results.append(copy(name, **(changes[number] if number < len(changes) else {})))
        return results

    return restore


def test_one_copy(call, answers) -> None:
    calls = answers(sandboxes=PRIVATE, restore=restore_answer())
    called = call("restore", "chat", "--name", "web")
    assert called.code == 0
    assert called.out == (
        "NAME  OUTCOME   ADDRESS     SECONDS   PRIVATE  MODE\nweb   restored  10.231.0.6   312 ms  50.0 MiB  mapped\n"
    )
    args, kwargs = calls["restore"][0]
    assert args[1:] == ("chat", ["web"])
    kwargs.pop("progress")
    assert kwargs == {"timeout_s": 120.0, "force_copy": False, "cold_start": True}


def test_names_of_several_copies(call, answers) -> None:
    calls = answers(sandboxes=PRIVATE, restore=restore_answer())
    call("restore", "chat", "--name", "web", "-n", "3", "--copy", "--no-cold-start", "--timeout", "9")
    call("restore", "chat", "--count", "2")
    call("restore", "chat")
    names = [args[2] for args, _ in calls["restore"]]
    assert names[0] == ["web-1", "web-2", "web-3"]
    assert re.fullmatch(r"chat-[a-z0-9]{4}", names[2][0])
    assert [re.sub("-....-", "-", name) for name in names[1]] == ["chat-1", "chat-2"]
    assert calls["restore"][0][1]["force_copy"] is True
    assert calls["restore"][0][1]["cold_start"] is False
    assert calls["restore"][0][1]["timeout_s"] == 9.0


def test_a_cold_start_is_told_with_its_reason_and_exit_code(call, answers) -> None:
    answers(sandboxes=PRIVATE, restore=restore_answer({}, FAILED))
    called = call("restore", "chat", "--name", "web", "-n", "2")
    assert called.code == 66
    assert [line.split()[:2] for line in called.out.splitlines()[1:]] == [["web-1", "restored"], ["web-2", "cold"]]
    assert "web-2: criu-restore-failed: CRIU: no" in called.err.splitlines()
    assert called.err.splitlines()[-1].startswith(
        "hotstart: cold-started: 1 of 2 copies cold started instead of being restored (criu-restore-failed);"
    )
    value = call("restore", "chat", "--name", "web", "-n", "2", "-o", "json").json()
    assert [c["outcome"] for c in value["copies"]] == ["restored", "cold"]
    assert value["copies"][0]["phases"]["total_s"] == 0.312
    assert value["error"]["reason"] == "cold-started"


def test_a_copy_that_was_removed_has_the_exit_code_of_its_reason(call, answers) -> None:
    answers(sandboxes=PRIVATE, restore=restore_answer({**FAILED, "outcome": "removed", "address": "", "phases": {}}))
    called = call("restore", "chat", "--name", "web", "--no-cold-start")
    assert called.code == 62
    assert called.err.splitlines()[-1].startswith("hotstart: criu-restore-failed: CRIU: no, while restoring web")


def test_all_is_well_as_json(call, answers) -> None:
    answers(sandboxes=PRIVATE, restore=restore_answer())
    value = call("restore", "chat", "--name", "web", "-o", "json").json()
    assert set(value) == {"snapshot", "copies"}
    assert set(value["copies"][0]) == {
        *("name", "outcome", "address", "phases", "verdicts", "engine_facts", "private_bytes", "reason", "detail")
    }
    assert value["copies"][0]["private_bytes"] == 52428800


def test_private_memory_that_cannot_be_measured_is_no_failure(call, answers) -> None:
    answers(sandboxes=OSError("gone"), restore=restore_answer())
    called = call("restore", "chat", "--name", "web")
    assert called.code == 0
    assert called.out.splitlines()[1].split() == ["web", "restored", "10.231.0.6", "312", "ms", "-", "mapped"]


def test_copied_memory_is_explained_once(call, answers) -> None:
    verdicts = [
        {
            "pid": 101,
            "name": "python",
            "mode": "mapped",
            "reason": "",
            "ranges": {"copied-locked": 2, "copied-stack": 1},
        },
        {"pid": 102, "name": "go", "mode": "copied", "reason": "copied-no-filter", "ranges": {}},
    ]
    answers(sandboxes=PRIVATE, restore=restore_answer({"verdicts": verdicts}, {"verdicts": verdicts}))
    called = call("restore", "chat", "-n", "2")
    assert called.out.splitlines()[1].endswith("1 mapped, 1 copied")
    assert called.err.splitlines() == [
        "hotstart: restore",
        "copied memory: copied-locked: 2 ranges of pid 101 (python)",
        "copied memory: copied-no-filter: pid 102 (go)",
    ]


@pytest.mark.parametrize(
    ("modes", "text"),
    [([], "-"), (["mapped"], "mapped"), (["copied", "copied"], "copied"), (["copied", "mapped"], "1 mapped, 1 copied")],
)
def test_mode(modes: list[str], text: str) -> None:
    assert mode([{"mode": mode} for mode in modes]) == text


def test_no_reason_for_what_is_mapped() -> None:
    assert reasons([{"pid": 1, "name": "x", "mode": "mapped", "reason": "", "ranges": {}}]) == []


def test_the_restore_is_drawn(call, answers, tmp_path) -> None:
    answers(sandboxes=PRIVATE, restore=restore_answer())
    path = tmp_path / "restore.svg"
    call("restore", "chat", "--name", "web", "-n", "2", "--timeline", str(path))
    text = path.read_text()
    assert "web-1" in text
    assert "web-2" in text
    assert "criu restore 110 ms" in text
