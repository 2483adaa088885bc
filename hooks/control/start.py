"""What the maker of a sandbox hands to its supervisor and launcher: the start file, paths and numbers.

The start file is text in fields that end with NUL, because neither arguments nor environments can hold one:

    cwd  uid  gid  groups(comma)  engine  argc  argument…  NAME=value…

No JSON and no dataclass: the launcher is part of every snapshot, and those imports would double its memory.
"""

from __future__ import annotations

import os

START_PATH = "/run/hotstart/start"
"""The start file inside a sandbox; readable by root alone."""
SITE_PATH = "/run/hotstart/site"
"""The injection directory inside a sandbox: a directory that holds the package ``hotstart`` and nothing else."""
SPARE_FDS = (3, 4, 5)
"""What a local sandbox's supervisor holds: further read ends of stdout and stderr, a further write end of stdin."""
ORPHANED_SIGNAL = 40
"""A real-time signal to the supervisor of a local sandbox: the reader of its pipes has died (PR_SET_PDEATHSIG)."""
LIMIT = 8 << 20
"""No start file is larger than this many bytes (the kernel takes at most 6 MiB of arguments and environment)."""


class Start:
    """The worker's command and how it is started."""

    __slots__ = ("command", "cwd", "engine", "env", "gid", "groups", "uid")

    def __init__(
        self,
        command: tuple[str, ...],
        env: dict[str, str],
        cwd: str = "/",
        uid: int = 0,
        gid: int = 0,
        groups: tuple[int, ...] = (),
        engine: str = "auto",
    ) -> None:
        self.command = command
        self.env = env
        self.cwd = cwd
        self.uid = uid
        self.gid = gid
        self.groups = groups
        self.engine = engine


def encode(start: Start) -> bytes:
    """The bytes of the start file; raises ValueError for what the kernel would not take either."""
    if not start.command:
        raise ValueError("there is no command")
    fields = [
        start.cwd,
        str(start.uid),
        str(start.gid),
        ",".join(str(group) for group in start.groups),
        start.engine,
        str(len(start.command)),
        *start.command,
    ]
    for name, value in start.env.items():
        if not name or "=" in name:
            raise ValueError(f"{name!r} cannot name an environment variable")
        fields.append(f"{name}={value}")
    if any("\0" in field for field in fields):
        raise ValueError("a word holds a NUL character")
    data = b"".join(os.fsencode(field) + b"\0" for field in fields)
    if len(data) > LIMIT:
        raise ValueError(f"arguments and environment are larger than {LIMIT} bytes")
    return data


def decode(data: bytes) -> Start:
    """Parse a start file; raises ValueError."""
    if not data.endswith(b"\0") or len(data) > LIMIT:
        raise ValueError("the start file is cut off or too large")
    fields = [os.fsdecode(field) for field in data[:-1].split(b"\0")]
    cwd, uid, gid, groups, engine, count = fields[:6]
    words, variables = fields[6 : 6 + int(count)], fields[6 + int(count) :]
    if not 0 < int(count) == len(words):
        raise ValueError("the start file has too few arguments")
    env = {}
    for variable in variables:
        name, equals, value = variable.partition("=")
        if not name or not equals:
            raise ValueError("the start file holds something that is not an environment variable")
        env[name] = value
    return Start(
        tuple(words), env, cwd, int(uid), int(gid), tuple(int(word) for word in groups.split(",") if word), engine
    )


def read(path: str) -> Start:
    """Read the start file; raises OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        chunks = []
        while chunk := os.read(fd, 1 << 20):
            chunks.append(chunk)
    finally:
        os.close(fd)
    return decode(b"".join(chunks))


def supervisor_command(python: str, mode: str, *, spare: bool, site: str = SITE_PATH) -> list[str]:
    """The command line of pid 1; ``mode`` is ``run`` or ``placeholder``, ``spare``: it holds SPARE_FDS."""
    code = f"import sys; sys.path.append({site!r}); from hotstart.hooks.supervisor.main import main; main()"
    return [python, "-I", "-S", "-c", code, "hotstart-supervisor", mode, START_PATH, "spare" if spare else "bare"]
