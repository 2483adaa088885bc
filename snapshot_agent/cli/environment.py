"""Which of the caller's environment a worker gets (pure).

``hotstart run -- COMMAND`` must start the command as the shell would have, virtual environment, caches and engine
settings included, so the caller's environment is passed on.  Two kinds of variables are left out.  *Session* variables
describe the terminal, desktop or service manager the caller sits in, which the worker must not believe in after a
restore.  *Secrets* of other programs would be frozen into every snapshot: a variable that looks like one is withheld
and named on stderr, unless it belongs to the worker itself (HF_TOKEN, VLLM_API_KEY) or ``--env NAME`` asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SESSION_NAMES = frozenset(
    """
    _ PWD OLDPWD SHLVL SHELLOPTS BASHOPTS PS1 PS2 PS3 PS4 PROMPT PROMPT_COMMAND HISTFILE HISTSIZE HISTCONTROL
    TERM TERM_PROGRAM TERM_PROGRAM_VERSION TERMINFO COLORTERM COLUMNS LINES LS_COLORS
    CLICOLOR CLICOLOR_FORCE FORCE_COLOR NO_COLOR PAGER MANPAGER LESS LESSOPEN LESSCLOSE EDITOR VISUAL BROWSER MAIL
    DISPLAY WAYLAND_DISPLAY XAUTHORITY WINDOWID DESKTOP_SESSION DBUS_SESSION_BUS_ADDRESS SESSION_MANAGER
    XDG_RUNTIME_DIR XDG_SEAT XDG_VTNR TMUX TMUX_PANE STY WINDOW GPG_AGENT_INFO GPG_TTY
    NOTIFY_SOCKET LISTEN_FDS LISTEN_PID LISTEN_FDNAMES INVOCATION_ID JOURNAL_STREAM MANAGERPID SYSTEMD_EXEC_PID
    WATCHDOG_PID WATCHDOG_USEC MAINPID
    """.split()
)
_SESSION_PREFIXES = ("SSH_", "SUDO_", "XDG_SESSION_", "VSCODE_", "BASH_FUNC_", "HOTSTART_", "_HOTSTART_")

_OWN_PREFIXES = (
    "HF_",
    "HUGGING_FACE_",
    "VLLM_",
    "SGLANG_",
    "TRTLLM_",
    "TLLM_",
    "TORCH",
    "PYTORCH",
    "TRITON_",
    "NCCL_",
    "CUDA_",
    "NVIDIA_",
    "OMP_",
    "MKL_",
    "KMP_",
    "PYTHON",
)
"""Variables of the engines themselves: passed even if they hold a secret, since the worker cannot do without."""

_SECRET_WORDS = frozenset(
    "TOKEN TOKENS SECRET SECRETS PASSWORD PASSWD PASSPHRASE PWD CREDENTIAL CREDENTIALS APIKEY PAT".split()
)
_URL_WITH_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_CLEAN = ("PATH", "LANG", "LC_ALL", "TZ")


@dataclass(frozen=True)
class Environment:
    """What the worker gets, and the names of what looked like a secret and was withheld."""

    variables: dict[str, str]
    withheld: tuple[str, ...] = ()


def is_session(name: str) -> bool:
    """True for a variable that describes the caller's terminal, desktop or service manager."""
    return name in _SESSION_NAMES or name.startswith(_SESSION_PREFIXES)


def is_secret(name: str, value: str) -> bool:
    """True for a variable that looks like a credential of another program than the worker."""
    upper = name.upper()
    if upper.startswith(_OWN_PREFIXES) or upper.endswith("_PROXY"):
        return False
    words = upper.split("_")
    return bool(_SECRET_WORDS.intersection(words)) or words[-1] == "KEY" or bool(_URL_WITH_PASSWORD.match(value))


def build(
    caller: Mapping[str, str], requested: Sequence[str], *, person: Mapping[str, str], clean: bool = False
) -> Environment:
    """The worker's environment.

    ``requested`` are the ``--env`` values (``NAME=VALUE``, or ``NAME`` to pass the caller's value on), ``person`` the
    variables that follow from ``--user`` (HOME, USER, LOGNAME), ``clean`` starts from PATH and locale alone.
    Raises ValueError with a sentence for a request that is not valid.
    """
    variables: dict[str, str] = {}
    withheld: list[str] = []
    for name, value in caller.items():
        if is_session(name) or not _NAME.fullmatch(name) or (clean and name not in _CLEAN):
            continue
        if is_secret(name, value):
            withheld.append(name)
        else:
            variables[name] = value
    variables.update(person)
    for request in requested:
        name, equals, value = request.partition("=")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{request!r} is not NAME=VALUE")
        if not equals and name not in caller:
            raise ValueError(f"{name} is not set here, so its value cannot be passed on")
        variables[name] = value if equals else caller[name]
    return Environment(variables, tuple(sorted(set(withheld) - variables.keys())))
