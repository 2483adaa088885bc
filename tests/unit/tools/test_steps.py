"""Steps of a set-up: one line each, and a failure that names step, cause and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.setup import Package
from tools.steps import StepFailed, most_telling, step


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOTSTART_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_step_is_one_line(capfd: pytest.CaptureFixture[str], own_cache: Path) -> None:
    with step("Make it", remedy="none") as log:
        log.run(["sh", "-c", "echo said; echo $GIVEN"], env={"GIVEN": "from outside"})
    out, err = capfd.readouterr()
    assert out == "", "standard output is for results"
    assert err.startswith("  Make it ")
    assert err.endswith(" s\n")
    assert (own_cache / "logs/make-it.log").read_text().splitlines()[1:] == ["said", "from outside"]


def test_a_failure_names_step_cause_and_remedy(own_cache: Path) -> None:
    with pytest.raises(StepFailed) as caught, step("Fetch it", remedy="look at the network") as log:
        log.run(["sh", "-c", "echo fine; echo 'E: Unable to fetch' >&2; echo bye; exit 3"])
    log_path = own_cache / "logs/fetch-it.log"
    assert caught.value.line() == f"Fetch it failed: E: Unable to fetch; look at the network (all of it: {log_path})"


def test_a_command_that_does_not_exist() -> None:
    with pytest.raises(StepFailed, match="No such file"), step("Try it", remedy="none") as log:
        log.run(["/no/such/program"])


def test_an_earlier_command_is_not_blamed() -> None:
    def both() -> None:
        with step("Both", remedy="none") as log:
            log.run(["sh", "-c", "echo 'error: harmless'"])
            log.run(["sh", "-c", "echo the real cause; exit 1"])

    with pytest.raises(StepFailed) as caught:
        both()
    assert caught.value.cause == "the real cause"


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (b"", ""),
        (b"one\ntwo\n", "two"),
        (b"Reading\nE: Release file is expired\nW: more\n", "E: Release file is expired"),
        (
            b"W1130 triton not found\nTraceback\n  File x\nImportError: libnuma.so.1: no\n",
            "ImportError: libnuma.so.1: no",
        ),
        (b"ValueError: first\nduring that\nRuntimeError:  last \nend\n", "RuntimeError: last"),
        (b"\xff cannot \xfe\n", "\ufffd cannot \ufffd"),
    ],
)
def test_the_most_telling_line(output: bytes, line: str) -> None:
    assert most_telling(output) == line


def test_packages_are_known_by_what_they_bring(tmp_path: Path) -> None:
    (tmp_path / "lib" / "libx.so.1").parent.mkdir()
    (tmp_path / "lib" / "libx.so.1").touch()
    assert Package("libx1", paths=(f"{tmp_path}/*/libx.so.1",)).present()
    assert not Package("liby1", paths=(f"{tmp_path}/*/liby.so.1",)).present()
    assert Package("bash", command="sh").present()
    assert not Package("nothing", command="no-such-command").present()
