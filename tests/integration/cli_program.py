"""The program as a user has it: started as a process of its own, looked at from outside."""

from __future__ import annotations

import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, "-m", "hotstart.snapshot_agent.cli.main"]
TIMEOUT_S = 60


@dataclass(frozen=True)
class Done:
    """What one call did."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """stdout as the one JSON value it must be."""
        return json.loads(self.out)

    def line(self) -> str:
        """stderr as the one line it must be."""
        assert self.err.endswith("\n"), self
        assert self.err.count("\n") == 1, self
        assert "Traceback" not in self.err, self
        return self.err.rstrip("\n")

    def failed(self, code: int, *words: str) -> None:
        """Assert one line that holds ``words``, and the exit code."""
        line = self.line()
        assert line.startswith("hotstart: "), self
        assert self.code == code, self
        for word in words:
            assert word in line, self


@dataclass
class Program:
    """``hotstart`` with a home of its own."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    def env(self) -> dict[str, str]:
        """The environment of a call."""
        own = {key: value for key, value in os.environ.items() if not key.startswith(("HOTSTART_HOME", "NO_COLOR"))}
        return {**own, "HOTSTART_HOME": str(self.home), **self.environment}

    def __call__(self, *arguments: str, **options: Any) -> Done:
        """Run it to its end."""
        done = subprocess.run(
            [*PROGRAM, *arguments],
            env=self.env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            **options,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start it; stderr can be read line by line."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([*PROGRAM, *arguments], env=self.env(), stdin=subprocess.DEVNULL, text=True, **options)

    def stop_all(self) -> None:
        """Leave nothing behind."""
        self("stop", "--all", "--grace", "0")


class Terminal:
    """A pseudo terminal with a program on it, as its session leader: ^C reaches what a shell's would."""

    def __init__(self, program: Program, *arguments: str, columns: int = 80) -> None:
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

        def lead() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [*PROGRAM, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={key: value for key, value in program.env().items() if key not in ("COLUMNS", "LINES")},
            preexec_fn=lead,
        )
        os.close(slave)
        self.text = ""

    def read_until(self, words: str | None) -> str:
        """All output up to ``words``, or to the end."""
        ends = time.monotonic() + TIMEOUT_S
        while words is None or words not in self.text:
            ready, _, _ = select.select([self.master], [], [], max(0.0, ends - time.monotonic()))
            assert ready, self.text
            try:
                data = os.read(self.master, 65536)
            except OSError:  # EIO: the program has gone
                data = b""
            if not data:
                assert words is None, self.text
                break
            self.text += data.decode()
        return self.text

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self.master, keys.encode())

    def finish(self) -> tuple[int, str]:
        """Exit code and all output."""
        try:
            text = self.read_until(None)
            return self.process.wait(TIMEOUT_S), text
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.master)


def at_terminal(program: Program, *arguments: str, columns: int = 80) -> tuple[int, list[str]]:
    """Exit code and lines of a call at a terminal."""
    code, text = Terminal(program, *arguments, columns=columns).finish()
    return code, text.replace("\r\n", "\n").splitlines()
