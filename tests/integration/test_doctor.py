"""The doctor on this machine: what is good, what is missing, and that it leaves nothing behind."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotstart.findings import Finding
from hotstart.linux.syscalls import MS_NOEXEC, mount, umount
from hotstart.names import CRIU_ENV, SUBNET_ENV
from hotstart.snapshot_agent.preflight.doctor import Checked, examine

pytestmark = pytest.mark.root


def _findings(checks: list[Checked]) -> dict[str, Finding]:
    return {name: finding for name, _passed, _found, finding in checks if finding is not None}


def _failed(checks: list[Checked]) -> dict[str, str]:
    """Name of each failed check to its reason code."""
    return {name: finding.reason.code for name, ok, _found, finding in checks if not ok and finding is not None}


@pytest.mark.criu
def test_this_machine_is_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    before = {name for _index, name in socket.if_nameindex()}
    checks = examine(tmp_path / "home")
    assert _failed(checks) == {}
    assert all(found for _name, _passed, found, _finding in checks)
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["criu-version.json"]
    assert {name for _index, name in socket.if_nameindex()} == before


def test_a_missing_criu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CRIU_ENV, str(tmp_path / "nowhere"))
    checks = examine(tmp_path / "home")
    assert _failed(checks) == {"CRIU": "criu-missing"}
    assert str(tmp_path / "nowhere") in _findings(checks)["CRIU"].found
    assert "./dev setup" in _findings(checks)["CRIU"].what_to_do


def test_a_criu_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("usr/sbin/criu", "lib64/ld-linux-x86-64.so.2"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/false\n")
        path.chmod(0o755)
    monkeypatch.setenv(CRIU_ENV, str(tmp_path / "tree"))
    assert _failed(examine(tmp_path / "home")) == {"CRIU": "criu-unusable"}


def test_a_network_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUBNET_ENV, "not-a-network")
    failed = _failed(examine(tmp_path / "home"))
    assert set(failed) - {"CRIU"} == {"sandbox"}


def test_without_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    failed = _failed(examine(tmp_path / "home"))
    assert failed["root"] == failed["sandbox"] == "not-root"


@pytest.fixture
def small_noexec(tmp_path: Path) -> Iterator[Path]:
    """A small home on which nothing may be executed."""
    point = tmp_path / "small"
    point.mkdir()
    mount("hotstart-test", str(point), "tmpfs", MS_NOEXEC, "size=16m")
    try:
        yield point
    finally:
        umount(str(point))


def test_a_small_noexec_home_is_told_and_passes(small_noexec: Path) -> None:
    checks = examine(small_noexec / "home")
    assert "disk" not in _failed(checks)
    assert _findings(checks)["disk"].reason.code == "noexec-store"
    assert not _findings(checks)["disk"].fatal


def test_bytecode_that_is_off_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    finding = _findings(examine(tmp_path / "home"))["bytecode"]
    assert finding.reason.code == "bytecode-off"
    assert not finding.fatal
