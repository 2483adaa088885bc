"""What of the caller's environment reaches a worker."""

import pytest

from hotstart.snapshot_agent.cli import environment


def passed(caller: dict[str, str], *requested: str, clean: bool = False) -> dict[str, str]:
    return environment.build(caller, requested, person={}, clean=clean).variables


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "LANG",
        "VIRTUAL_ENV",
        "PYTHONPATH",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "OMP_NUM_THREADS",
        "TOKENIZERS_PARALLELISM",
        "VLLM_CPU_KVCACHE_SPACE",
        "HF_TOKEN",
        "HF_HOME",
        "VLLM_API_KEY",
        "XDG_CACHE_HOME",
        "MODEL",
        "SSL_CERT_FILE",
        "KEYBOARD",
        "MONKEY",
    ],
)
def test_what_the_command_may_need_is_passed(name: str) -> None:
    assert passed({name: "value"}) == {name: "value"}


@pytest.mark.parametrize(
    "name",
    [
        "TERM",
        "_",
        "SHLVL",
        "OLDPWD",
        "PWD",
        "SSH_CONNECTION",
        "SSH_AUTH_SOCK",
        "SUDO_USER",
        "DISPLAY",
        "XDG_RUNTIME_DIR",
        "XDG_SESSION_ID",
        "NOTIFY_SOCKET",
        "TMUX",
        "HOTSTART_HOME",
        "BASH_FUNC_module%%",
    ],
)
def test_the_session_stays_outside_and_is_not_worth_a_word(name: str) -> None:
    assert environment.build({name: "value"}, [], person={}) == environment.Environment({}, ())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GITHUB_TOKEN", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("AWS_SESSION_TOKEN", "x"),
        ("DB_PASSWORD", "x"),
        ("OPENAI_API_KEY", "x"),
        ("my_passwd", "x"),
        ("GOOGLE_CREDENTIALS", "x"),
        ("DATABASE_URL", "postgres://app:hunter2@db/app"),
    ],
)
def test_secrets_of_others_are_withheld_and_named(name: str, value: str) -> None:
    assert environment.build({name: value, "A": "1"}, [], person={}) == environment.Environment({"A": "1"}, (name,))


def test_a_proxy_is_passed_with_its_password() -> None:
    assert passed({"https_proxy": "http://user:pw@proxy:3128"}) == {"https_proxy": "http://user:pw@proxy:3128"}


def test_a_secret_is_passed_when_asked_for() -> None:
    built = environment.build({"GITHUB_TOKEN": "t", "DB_PASSWORD": "p"}, ["GITHUB_TOKEN"], person={})
    assert built == environment.Environment({"GITHUB_TOKEN": "t"}, ("DB_PASSWORD",))


def test_requests_win_over_the_person_and_the_person_over_the_caller() -> None:
    built = environment.build({"HOME": "/root", "A": "1"}, ["A=2", "B=x=y", "E="], person={"HOME": "/people/u"})
    assert built.variables == {"HOME": "/people/u", "A": "2", "B": "x=y", "E": ""}


def test_clean_keeps_path_and_locale() -> None:
    caller = {"PATH": "/bin", "LANG": "C.UTF-8", "FOO": "1", "GITHUB_TOKEN": "t"}
    assert environment.build(caller, ["BAR=2"], person={}, clean=True) == environment.Environment(
        {"PATH": "/bin", "LANG": "C.UTF-8", "BAR": "2"}, ()
    )


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("=x", "is not NAME=VALUE"),
        ("A B=1", "is not NAME=VALUE"),
        ("1A=1", "is not NAME"),
        ("MISSING", "is not set here"),
    ],
)
def test_a_request_that_makes_no_sense(request_: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        environment.build({}, [request_], person={})
