"""Local sandboxes: made, found again by their files on disk, looked at, and removed with everything they held."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from hotstart import naming, reasons
from hotstart.errors import HotstartError
from hotstart.hooks.control.directory import ControlDirectory
from hotstart.hooks.control.protocol import ControlError, State
from hotstart.reasons import SANDBOX_DEAD, Reason
from hotstart.snapshot_agent.sandbox import making, removal, state
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec
from hotstart.snapshot_agent.sandbox.order import CONTROL, LOG
from hotstart.snapshot_agent.sandbox.state import SANDBOXES, Live, Record

_TAIL = 4096
"""Bytes at the end of a log in which the last words are looked for."""
_SHOWN = 300
"""Characters of the last words."""


@dataclass(frozen=True)
class LocalSandbox:
    """One local sandbox as its files tell (implements ``contract.Sandbox``); a value, made anew by ``load``."""

    directory: Path
    record: Record
    live: Live | None
    """None: its making was never finished, or goes on."""

    @property
    def name(self) -> str:
        """The name people use."""
        return self.directory.name

    @property
    def spec(self) -> SandboxSpec:
        """What the sandbox was made from."""
        return self.record.spec

    @property
    def created(self) -> str:
        """When it was made: UTC, RFC 3339."""
        return self.record.created

    @property
    def restored_from(self) -> str:
        """The snapshot that it was made for, or empty."""
        return self.record.restored_from

    @property
    def init_pid(self) -> int:
        """Pid of the supervisor; 0 if there never was one."""
        return self.live.init_pid if self.live else 0

    @property
    def control(self) -> ControlDirectory:
        """The control directory, as a host path."""
        return ControlDirectory(self.directory / CONTROL)

    @property
    def address(self) -> str:
        """IPv4 address at which the worker is reached; empty if it has none yet."""
        return self.live.address if self.live else ""

    @property
    def log_path(self) -> Path:
        """The file that holds what the worker wrote."""
        return self.directory / LOG

    def exit_status(self) -> int | None:
        """Exit status of the worker, 128 + signal if one killed it; None while it lives, or if nobody knows."""
        ended = state.read_exit(self.directory)
        return ended.status if ended else None

    def lives(self) -> bool:
        """True while the supervisor lives."""
        return self.live is not None and self.live.lives()

    def alive(self) -> None:
        """Return while the supervisor lives; raise ``sandbox-dead``, or the reason that its last words name."""
        if self.lives():
            return
        status = self.exit_status()
        ended = "has ended" if status is None else f"has ended with status {status}"
        words = self.last_words()
        reason, words = _reason_of(words)
        raise HotstartError(reason, f"the sandbox {self.name} {ended}" + (f": {words}" if words else ""))

    def state(self) -> str:
        """One of the words of ``api.SandboxInfo.state``."""
        if not self.lives():
            return "exited" if self.live is not None else "failed"
        if self.cold_start_reason():
            return "cold"
        try:
            report = self.control.state()
        except ControlError:
            return "failed"
        if report is None:
            waits = self.record.placeholder and self._adoption() is None
            return "starting" if waits or self.spec.engine != "none" else "running"
        return "ready" if report.state is State.RESUMED else str(report.state)

    def reason(self) -> str:
        """Why the state is ``cold``, ``failed`` or ``exited``; empty otherwise."""
        if not self.lives():
            return self.last_words() if self.live is not None else "its making was never finished"
        if cold := self.cold_start_reason():
            return cold
        try:
            report = self.control.state()
        except ControlError as error:
            return f"the worker's report cannot be read: {error}"
        return " ".join(f"{report.reason} {report.detail}".split()) if report else ""

    def cold_start_reason(self) -> str:
        """Why a placeholder cold started; empty if it did not."""
        return self._adoption() or ""

    def last_words(self) -> str:
        """The last line of the log, made printable and short."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                lines = file.read(_TAIL).decode(errors="replace").split("\n")
        except OSError:
            return ""
        line = next((line for line in reversed(lines) if line.strip()), "")
        return "".join(letter if letter.isprintable() else " " for letter in line)[:_SHOWN].strip()

    def _adoption(self) -> str | None:
        """The cold start reason of the agent's order to the supervisor; None if there is no order."""
        with contextlib.suppress(ControlError):
            adoption = self.control.adoption()
            return adoption.cold_start_reason if adoption else None
        return None


def create(home: Path, spec: SandboxSpec, *, placeholder: bool, restored_from: str = "") -> LocalSandbox:
    """Make a sandbox; returns as soon as its supervisor's program has been started.

    A placeholder's supervisor waits for ``agent/root``; the other one starts the command.  Safe to call from several
    threads and processes.  Raises ``bad-name``, ``not-root``, ``sandbox-exists``, ``sandbox-start`` and the reasons of
    what the machine lacks (``cgroup-unusable``, ``overlay-unusable``, ``network-unusable``, ``addresses-exhausted``).
    """
    making.make(home, spec, placeholder=placeholder, restored_from=restored_from)
    try:
        return load(home, spec.name)
    except BaseException:  # Ctrl-C: the caller will never know that there is one
        destroy(home, spec.name, grace_s=0)
        raise


def load(home: Path, name: str) -> LocalSandbox:
    """The sandbox of that name, dead or alive; raises ``bad-name``, ``no-such-sandbox``, ``sandbox-start``."""
    where = state.directory(home.resolve(), naming.check(name, "sandbox"))
    return LocalSandbox(where, state.read_record(where), state.read_live(where))


def list_all(home: Path) -> list[LocalSandbox]:
    """All sandboxes by name; those whose record cannot be read are left out (``unreadable`` names them)."""
    found = []
    for name in _names(home):
        with contextlib.suppress(HotstartError):
            found.append(load(home, name))
    return found


def unreadable(home: Path) -> dict[str, str]:
    """Names of sandboxes whose files cannot be read, with the reason; ``destroy`` removes them."""
    found = {}
    for name in _names(home):
        try:
            load(home, name)
        except HotstartError as error:
            if error.reason is not reasons.NO_SUCH_SANDBOX:  # removed meanwhile
                found[name] = error.line()
    return found


def destroy(home: Path, name: str, grace_s: float = 10.0) -> int | None:
    """SIGTERM to the supervisor, SIGKILL after ``grace_s`` seconds, and everything the sandbox held is removed.

    Returns the worker's exit status, or None if nobody knows it.  Does nothing if there is no such sandbox.  Raises
    ``bad-name``, ``deadline`` if processes do not die, OSError.
    """
    ended = removal.remove(home, naming.check(name, "sandbox"), grace_s=grace_s)
    return ended.status if ended else None


def _names(home: Path) -> list[str]:
    try:
        entries = os.listdir(home / SANDBOXES)
    except FileNotFoundError:
        return []
    return sorted(name for name in entries if naming.valid(name))


def _reason_of(words: str) -> tuple[Reason, str]:
    """A line ``hotstart: code: detail`` of supervisor or launcher names its reason."""
    prefix, _, rest = words.partition(": ")
    code, _, detail = rest.partition(": ")
    if prefix == "hotstart" and code in reasons.REGISTRY and detail:
        return reasons.REGISTRY[code], detail
    return SANDBOX_DEAD, words
