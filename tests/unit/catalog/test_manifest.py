"""The manifest is strict: what it says is what was meant, or it is refused with one reason."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotstart.errors import HotstartError
from hotstart.snapshot_agent.catalog import manifest as m
from hotstart.snapshot_agent.catalog import rules
from tests.unit.catalog.samples import entries, manifest, replaced, verdict

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "snapshot.md"


def invalid(data: bytes) -> HotstartError:
    with pytest.raises(HotstartError) as caught:
        m.decode(data)
    return caught.value


def test_round_trip() -> None:
    one = manifest()
    rules.check(one)
    assert m.decode(m.encode(one)) == one


def test_names_that_are_not_utf8_survive() -> None:
    name = os.fsdecode(b"/opt/caf\xe9/\xff\xc3\xa9 \xf0\x9f\x98\x80")
    one = manifest(facts=replaced(manifest().facts, files=[m.FileIdentity(path=name, bytes=1, mtime_ns=1)]))
    again = m.decode(m.encode(one))
    assert again == one
    assert os.fsencode(again.facts.files[0].path) == b"/opt/caf\xe9/\xff\xc3\xa9 \xf0\x9f\x98\x80"
    assert m.encode(one).isascii()


def test_another_version_is_told_from_damage() -> None:
    assert invalid(m.encode(manifest()).replace(b'"version": 1', b'"version": 2', 1)).reason.code == "manifest-version"
    assert invalid(b'{"version": "1"}').reason.code == "manifest-invalid"
    assert invalid(b"{}").reason.code == "manifest-invalid"


def test_cut_off_anywhere() -> None:
    data = m.encode(manifest()).rstrip()
    for length in range(len(data)):
        assert invalid(data[:length]).reason.code == "manifest-invalid"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b'{"version": 1}',
        b'{"version": 1, "x": "\\udcff"}',
        b'{"version": 1, "x": ["\\udcff", NaN]}',
        b'{"version": 1e999}',
    ],
)
def test_rubbish(data: bytes) -> None:
    assert invalid(data).reason.code == "manifest-invalid"


def test_unknown_fields_are_refused_everywhere() -> None:
    plain = json.loads(m.encode(manifest()))
    places = [plain, *(value for value in plain.values() if isinstance(value, dict)), plain["files"][0]]
    for place in places:
        if place is plain["labels"] if "labels" in plain else False:
            continue
        place["surprise"] = 1
        assert invalid(json.dumps(plain).encode()).reason.code == "manifest-invalid"
        del place["surprise"]
    m.decode(json.dumps(plain).encode())


def file(path: str, **changes: Any) -> list[m.FileEntry]:
    return [*entries(), replaced(m.FileEntry(path=path, bytes=1, digest="sha256:" + "0" * 64), **changes)]


SOUND = manifest()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"name": "../x"}, "name"),
        ({"created": "yesterday"}, "created"),
        ({"created": "2026-01-02T03:04:05"}, "zone"),
        ({"files": file("/etc/passwd")}, "no path"),
        ({"files": file("../x")}, "no path"),
        ({"files": file("a/../x")}, "no path"),
        ({"files": file("a//x")}, "no path"),
        ({"files": file(".hidden")}, "no path"),
        ({"files": file("")}, "no path"),
        ({"files": file("a\n")}, "no path"),
        ({"files": file("memory")}, "twice"),
        ({"files": file("manifest.json")}, "cannot be listed"),
        ({"files": file("skeleton")}, "a file and a directory"),
        ({"files": file("x", bytes=-1)}, "size and digest"),
        ({"files": file("x", digest="md5:00")}, "size and digest"),
        ({"files": file("x", digest="sha256:" + "0" * 65)}, "size and digest"),
        ({"files": [f for f in entries() if f.path != "memory.table"]}, "its table"),
        ({"files": [f for f in entries() if f.path != "tmpfs-0.tar"]}, "archive of '/dev/shm'"),
        ({"tmpfs": [m.TmpfsEntry(target="dev", path="tmpfs-0.tar")]}, "absolute"),
        ({"tmpfs": SOUND.tmpfs * 2}, "twice"),
        ({"pids": [100, 101, 101]}, "pids"),
        ({"pids": [100, 101, 0]}, "pids"),
        ({"pids": [101, 102]}, "pids"),
        ({"pids": []}, "pids"),
        ({"root_pid": -1}, "pids"),
        ({"verdicts": [verdict(7)]}, "verdict"),
        ({"verdicts": [verdict(100, mode="streamed")]}, "verdict"),
        ({"verdicts": [verdict(100, mapped_bytes=-1)]}, "below zero"),
        ({"verdicts": [verdict(100, ranges={"copied-locked": -1})]}, "below zero"),
        ({"verdicts": [verdict(100), verdict(100)]}, "two verdicts"),
        ({"memory_ids": [5, 5]}, "file ids"),
        ({"memory_ids": [0]}, "file ids"),
        ({"stdio": m.Stdio(names=["pipe:[1]"])}, "streams"),
        ({"sandbox": replaced(SOUND.sandbox, command=[])}, "command"),
        ({"sandbox": replaced(SOUND.sandbox, env={"A=B": ""})}, "variable"),
        ({"sandbox": replaced(SOUND.sandbox, env={"A": "\0"})}, "NUL"),
        ({"sandbox": replaced(SOUND.sandbox, uid=-1)}, "user"),
        ({"sandbox": replaced(SOUND.sandbox, cwd="relative")}, "absolute"),
        ({"sandbox": replaced(SOUND.sandbox, tmpfs=["/a/../b"])}, "absolute"),
        (
            {"sandbox": replaced(SOUND.sandbox, volumes=[m.VolumeEntry(source="/a", target="b", read_only=True)])},
            "absolute",
        ),
        ({"sizes": replaced(SOUND.sizes, kv_bytes=-1)}, "kv_bytes"),
        ({"timings": replaced(SOUND.timings, frozen_s=-0.1)}, "time"),
        ({"timings": replaced(SOUND.timings, spans=[m.PhaseEntry(name="x", start_s=1.0, end_s=0.5)])}, "phase"),
        ({"facts": replaced(SOUND.facts, page_size=0)}, "page size"),
    ],
)
def test_rules_beyond_types(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(HotstartError, match=word) as caught:
        rules.check(manifest(**changes))
    assert caught.value.reason.code == "manifest-invalid"
    assert caught.value.line().isprintable()


def _structs(kind: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    found = {kind.__name__: kind}
    for field in msgspec.structs.fields(kind):
        for part in (field.type, *getattr(field.type, "__args__", ())):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                found |= _structs(part)
    return found


def test_every_field_has_a_line_in_the_format_page() -> None:
    page = PAGE.read_text()
    sections = {part.partition("\n")[0].strip(" `"): part for part in page.split("\n### ")}
    for name, struct in _structs(m.Manifest).items():
        assert name in sections, f"docs/formats/snapshot.md has no section {name}"
        described = [line.split("|")[1].strip(" `") for line in sections[name].splitlines() if line.startswith("| `")]
        assert described == [field.name for field in msgspec.structs.fields(struct)], name
