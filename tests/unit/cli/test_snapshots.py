"""``hotstart snapshot`` and its verbs."""

from xml.etree import ElementTree

import pytest

from hotstart.errors import HotstartError
from hotstart.reasons import MANIFEST_INVALID, SNAPSHOT_BUSY
from hotstart.snapshot_agent import api
from hotstart.snapshot_agent.catalog import manifest as m
from tests.unit.cli.samples import SECRET, sandbox, snapshot

LISTED = [snapshot("new", created="2026-01-03T00:00:00Z"), snapshot()]
DAMAGED = {"broken": "manifest-invalid: not JSON"}


def create_answer(home, sandbox, name, **kwargs):
    kwargs["progress"]("quiesce", 0.0)
    kwargs["progress"]("quiesce", 1.0)
    kwargs["progress"]("dump", 0.5)
    return snapshot(name)


def test_create_takes_the_sandboxs_name_or_numbers_it(call, answers) -> None:
    calls = answers(create_snapshot=create_answer, snapshots=[], damaged_snapshots={})
    called = call("snapshot", "create", "chat")
    assert called.code == 0
    assert called.out == "NAME    STORED    MEMORY  FROZEN   TOTAL\nchat  1.31 GiB  1.30 GiB  655 ms  1.62 s\n"
    assert called.err == "hotstart: quiesce\nhotstart: dump\n"
    answers(snapshots=[snapshot("chat")], damaged_snapshots={"chat-2": "x"})
    call("snapshot", "create", "chat", "--stop", "--copy", "--timeout", "5")
    assert [args[1:] for args, _ in calls["create_snapshot"]] == [("chat", "chat"), ("chat", "chat-3")]
    options = {key: value for key, value in calls["create_snapshot"][1][1].items() if key != "progress"}
    assert options == {"stop_source": True, "force_copy": True, "timeout_s": 5.0}


def test_create_under_a_given_name_asks_nobody(call, answers) -> None:
    answers(create_snapshot=create_answer, snapshots=OSError("not to be asked"))
    assert call("snapshot", "create", "chat", "--name", "v2", "-o", "json").json()["name"] == "v2"


def test_list_in_order_with_damaged_ones_last(call, answers) -> None:
    answers(snapshots=LISTED, damaged_snapshots=DAMAGED)
    lines = call("snapshot", "list").out.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "chat", "new", "broken"]
    assert "655 ms" in lines[1]
    assert "31.2 s" in lines[1]
    assert lines[3].endswith("manifest-invalid: not JSON")
    assert call("snapshot", "list", "-q").out == "chat\nnew\nbroken\n"
    assert call("snapshot", "list", "-q", "-o", "json").json() == ["chat", "new", "broken"]
    listed = call("snapshot", "list", "-o", "json").json()
    assert listed[0]["frozen_s"] == 0.655
    assert listed[0]["processes"] == 3
    assert listed[2] == {"name": "broken", "damaged": "manifest-invalid: not JSON"}


def test_list_of_nothing(call, answers) -> None:
    answers(snapshots=[], damaged_snapshots={})
    called = call("snapshot", "list")
    assert called.out.startswith("NAME ")
    assert called.err == "no snapshots; hotstart snapshot create SANDBOX makes one\n"


def test_inspect_tells_all_but_the_secrets(call, answers) -> None:
    answers(inspect_snapshot=snapshot())
    called = call("snapshot", "inspect", "chat")
    assert called.code == 0
    for words in (
        "python -m vllm.entrypoints.openai.api_server --model /models/chat",
        "1000:1000",
        "/models at /models",
        "2 variables (values are not shown)",
        "'The capital of France is' answered by tokens 7",
        "none in the snapshot, 4.00 GiB released before the capture",
        "drain time 31 ms",
        "kv 8.00 MiB",
        "processes 2",
        "VLLM::EngineCore",
        "copied-wipe-on-fork (2)",
        "Phases of the capture: 1.62 s, frozen 655 ms",
        "unaccounted",
        "6.1.0 x86_64",
        "1 file that must be unchanged at a restore",
    ):
        assert words in " ".join(called.out.split())
    assert SECRET not in called.out + called.err


def test_inspect_as_json_is_the_manifest_without_secrets(call, answers) -> None:
    answers(inspect_snapshot=snapshot())
    called = call("snapshot", "inspect", "chat", "-o", "json")
    value = called.json()
    assert value["path"] == "/var/lib/hotstart/snapshots/chat"
    assert value["manifest"]["sandbox"].pop("env_names") == ["HF_TOKEN", "PATH"]
    value["manifest"]["sandbox"]["env"] = snapshot().manifest.sandbox.env
    assert m.decode(m.msgspec.json.encode(value["manifest"])) == snapshot().manifest
    assert SECRET not in called.out


def test_inspect_draws_the_capture(call, answers, tmp_path) -> None:
    answers(inspect_snapshot=snapshot())
    path = tmp_path / "capture.svg"
    called = call("snapshot", "inspect", "chat", "-o", "json", "--timeline", str(path))
    assert called.err == f"timeline: {path}\n"
    text = "".join(ElementTree.fromstring(path.read_text()).itertext())
    assert "capture of chat" in text
    assert "criu dump 410 ms" in text
    called.json()


def test_foreign_names_cannot_steer_the_terminal(call, answers) -> None:
    from tests.unit.cli.samples import verdict

    answers(inspect_snapshot=snapshot(verdicts=[verdict(1, "\x1b[2J\nevil")]))
    out = call("snapshot", "inspect", "chat").out
    assert "\x1b" not in out
    assert "\\x1b[2J\\nevil" in out


def test_verify_names_every_damaged_file(call, answers) -> None:
    def verify(home, name, progress):
        progress("verify", 0.5)
        if name == "chat":
            return []
        if name == "broken":
            raise HotstartError(MANIFEST_INVALID, "not JSON")
        return [api.Damage("memory", "block 17 differs"), api.Damage("skeleton/core-1.img", "missing")]

    answers(verify_snapshot=verify, snapshots=LISTED, damaged_snapshots=DAMAGED)
    called = call("snapshot", "verify", "chat")
    assert (called.code, called.out) == (0, "NAME  STATE   FILE  WHAT\nchat  intact\n")
    assert called.err == "hotstart: chat: verify\n"
    called = call("snapshot", "verify", "--all")
    assert called.code == 54
    assert called.out.splitlines()[1:] == [
        "broken  damaged  manifest.json        not JSON",
        "chat    intact",
        "new     damaged  memory               block 17 differs",
        "new     damaged  skeleton/core-1.img  missing",
    ]
    last = called.err.splitlines()[-1]
    assert last == "hotstart: snapshot-damaged: 3 files damaged in broken, new; capture again"
    called = call("snapshot", "verify", "--all", "-o", "json")
    assert called.code == 54
    value = called.json()
    assert [(s["name"], s["intact"], len(s["damaged"])) for s in value["snapshots"]] == [
        ("broken", False, 1),
        ("chat", True, 0),
        ("new", False, 2),
    ]
    assert value["error"]["reason"] == "snapshot-damaged"


def test_rm_tells_what_was_freed_and_what_was_not(call, answers) -> None:
    def remove(home, name):
        if name == "busy":
            raise HotstartError(SNAPSHOT_BUSY, "busy is being read")
        return 1 << 30

    answers(remove_snapshot=remove)
    called = call("snapshot", "rm", "chat", "busy")
    assert called.code == 52
    assert called.out == "REMOVED     FREED\nchat     1.00 GiB\n"
    assert called.error_line().startswith("hotstart: snapshot-busy: busy is being read;")
    value = call("snapshot", "rm", "chat", "-o", "json").json()
    assert value == {"removed": [{"name": "chat", "freed_bytes": 1 << 30}]}


def test_progress_is_on_stderr_only(call, answers) -> None:
    answers(create_snapshot=create_answer, snapshots=[], damaged_snapshots={}, sandboxes=[sandbox()])
    called = call("snapshot", "create", "chat", "-o", "json")
    assert called.json()["name"] == "chat"
    assert called.err == "hotstart: quiesce\nhotstart: dump\n"


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_picture_that_cannot_be_written_is_refused_first(call, answers, tmp_path, ending: str) -> None:
    calls = answers(inspect_snapshot=snapshot())
    assert call("snapshot", "inspect", "chat", "--timeline", str(tmp_path / f"no/x.{ending}")).code == 2
    (tmp_path / f"dir.{ending}").mkdir()
    assert call("snapshot", "inspect", "chat", "--timeline", str(tmp_path / f"dir.{ending}")).code == 2
    assert calls == {}
