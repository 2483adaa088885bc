"""The attempts of ``doctor``: they work here, leave nothing, and tell what does not work."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hotstart.linux import procfs
from hotstart.names import SUBNET_ENV
from hotstart.reasons import NETWORK_UNUSABLE, OVERLAY_UNUSABLE
from hotstart.snapshot_agent.sandbox import cgroups
from hotstart.snapshot_agent.sandbox.probe import Probe, probe
from tests.conftest import eventually, traces

pytestmark = pytest.mark.root


def _by_name(results: list[Probe]) -> dict[str, Probe]:
    return {result.name: result for result in results}


def test_everything_works_here_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUBNET_ENV, "10.254.252.0/30")
    results = probe(tmp_path / "home")
    assert [result for result in results if result.reason is not None] == []
    assert len(results) == 10
    assert list((tmp_path / "home").iterdir()) == []
    assert traces(tmp_path / "home") == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    for hierarchy in cgroups.hierarchies(procfs.mountinfo("self")):
        assert not list((hierarchy.point / cgroups.PARENT).glob("probe.*"))
    eventually(lambda: "hs0afefc01" not in {name for _index, name in socket.if_nameindex()})


def test_a_network_that_is_taken_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUBNET_ENV, "127.0.0.0/24")
    result = _by_name(probe(tmp_path))["network link"]
    assert result.reason is NETWORK_UNUSABLE
    assert "taken" in result.found


def test_a_home_that_overlayfs_does_not_take_is_told(tmp_path: Path) -> None:
    home = tmp_path / "odd,name"
    result = _by_name(probe(home))["overlay"]
    assert result.reason is OVERLAY_UNUSABLE
    assert result.found
