"""The worker's environment, as a value."""

from __future__ import annotations

import pytest

from hotstart.hooks.control.start import SITE_PATH
from hotstart.hooks.launcher.environment import CAPTURABLE, PATH, environment


def test_what_is_not_set_is_set() -> None:
    env = environment({"A": "b"}, "auto")
    assert {name: env[name] for name in CAPTURABLE} == CAPTURABLE
    assert env["A"] == "b"
    assert env["PATH"] == PATH
    assert env["HOTSTART_ENGINE"] == "auto"
    assert env["HOTSTART_CONTROL"] == "/run/hotstart/control"


@pytest.mark.parametrize("name", [*CAPTURABLE, "PATH"])
def test_the_user_is_right(name: str) -> None:
    assert environment({name: "mine"}, "auto")[name] == "mine"
    assert environment({name: ""}, "auto")[name] == ""


@pytest.mark.parametrize(("before", "after"), [(None, SITE_PATH), ("", SITE_PATH), ("/a:/b", f"/a:/b:{SITE_PATH}")])
def test_the_injection_directory_comes_last(before: str | None, after: str) -> None:
    env = {} if before is None else {"PYTHONPATH": before}
    assert environment(env, "auto")["PYTHONPATH"] == after


def test_a_program_without_hooks_gets_nothing() -> None:
    assert environment({"PATH": "/bin"}, "none") == {"PATH": "/bin", "HOTSTART_ENGINE": "none"}
    assert environment({"PATH": "/bin", "HOTSTART_ENGINE": "none"}, "auto") == {
        "PATH": "/bin",
        "HOTSTART_ENGINE": "none",
    }


@pytest.mark.parametrize(
    ("given", "wanted"), [("lora", "lora,hotstart"), ("hotstart", "hotstart"), ("a,hotstart,b", "a,hotstart,b")]
)
def test_an_allow_list_of_plugins_lets_ours_in(given: str, wanted: str) -> None:
    assert environment({"VLLM_PLUGINS": given}, "auto")["VLLM_PLUGINS"] == wanted


def test_no_allow_list_is_made_where_there_was_none() -> None:
    assert "VLLM_PLUGINS" not in environment({}, "auto")
    assert environment({"VLLM_PLUGINS": "lora"}, "none")["VLLM_PLUGINS"] == "lora"
