"""Names that are made up, and names that were mistyped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstart.naming import valid
from hotstart.snapshot_agent.cli import naming


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "x"], "vllm-k3fq"),
        (["/opt/venv/bin/vllm", "serve", "model"], "vllm-k3fq"),
        (["python3.11", "-u", "/srv/My Server.py"], "my-server-k3fq"),
        (["python", "-c", "pass"], "python-k3fq"),
        (["python"], "python-k3fq"),
        (["bash", "run.sh"], "run-k3fq"),
        (["sleep", "1000"], "sleep-k3fq"),
        (["env", "A=1", "numactl", "-N", "0", "./serve"], "serve-k3fq"),
        (["uv", "run"], "run-k3fq"),
        (["___"], "worker-k3fq"),
        (["/usr/bin/模型"], "worker-k3fq"),
    ],
)
def test_a_name_says_what_runs(command: list[str], name: str) -> None:
    assert naming.from_command(command, "k3fq") == name


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4), st.binary(min_size=4, max_size=4))
def test_every_command_gives_a_valid_name(command: list[str], random: bytes) -> None:
    assert valid(naming.from_command(command, naming.suffix(random)))


@given(st.text(min_size=1, max_size=200), st.integers(1, 10**6))
def test_numbers_are_kept_when_a_name_is_cut(base: str, number: int) -> None:
    joined = naming.join(base, str(number))
    assert valid(joined)
    assert joined.endswith(f"-{number}")


def test_the_first_free_name() -> None:
    assert naming.first_free("chat", []) == "chat"
    assert naming.first_free("chat", {"chat", "chat-2"}) == "chat-3"


def test_copies_are_numbered() -> None:
    assert naming.numbered("web", 1) == ["web"]
    assert naming.numbered("web", 3) == ["web-1", "web-2", "web-3"]


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("caht", ["chat", "web"], "chat"),
        ("vllm", ["vllm-k3fq", "web"], "vllm-k3fq"),
        ("smollm", ["smollm-instruct-v2-long", "other"], "smollm-instruct-v2-long"),
        ("sm", ["smollm-1", "smollm-2"], ""),
        ("zzz", ["chat"], ""),
        ("x", [], ""),
    ],
)
def test_what_was_meant(word: str, known: list[str], meant: str) -> None:
    assert naming.closest(word, known) == meant
