"""A way to call the program in this process.

Real here: everything of the command line, from the arguments to what is printed.  Replaced: the functions of
``hotstart.snapshot_agent.api``, by ones that return the values given: these tests are about what is made of values.
tests/integration/test_cli.py runs the program against the real API.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hotstart.snapshot_agent import api
from hotstart.snapshot_agent.cli.main import main


@dataclass(frozen=True)
class Called:
    """What one call of the program did."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """stdout as the one JSON value it must be."""
        return json.loads(self.out)

    def error_line(self) -> str:
        """stderr as the one line it must be."""
        assert self.err.endswith("\n"), self.err
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err.rstrip("\n")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Called]:
    """Run the program as root would (``call("ps", "-q")``), with a home of its own."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("HOTSTART_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> Called:
        capsys.readouterr()
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return Called(code, out, err)

    return run


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, list[Any]]]:
    """``answers(ps=value)``: let API functions return these values, or raise them; returns the calls they got."""

    def replace(**values: Any) -> dict[str, list[Any]]:
        calls: dict[str, list[Any]] = {}

        def answering(name: str, value: Any) -> Callable[..., Any]:
            def answer(*args: Any, **kwargs: Any) -> Any:
                calls.setdefault(name, []).append((args, kwargs))
                if callable(value):
                    return value(*args, **kwargs)
                if isinstance(value, BaseException):
                    raise value
                return value

            return answer

        for name, value in values.items():
            assert hasattr(api, name)
            monkeypatch.setattr(api, name, answering(name, value))
        return calls

    return replace
