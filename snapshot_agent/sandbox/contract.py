"""What the engine needs to know of a sandbox; a local sandbox and a pod's container both provide it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from hotstart.hooks.control.directory import ControlDirectory


@dataclass(frozen=True)
class Volume:
    """A host directory or file that is bind-mounted; never part of a snapshot."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True)
class SandboxSpec:
    """How to start a worker, and what is started again when a restore cannot work (cold start)."""

    name: str
    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "/"
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    rootfs: str = "/"
    """Lower directory of the overlay root; "/" is the host's own root file system, read-only below."""
    tmpfs: tuple[str, ...] = ()
    """Further tmpfs mount points; /run and /dev/shm are always tmpfs.  Their contents travel with a snapshot."""
    volumes: tuple[Volume, ...] = ()
    engine: str = "auto"
    """auto: engine plugins attach themselves; none: the program has no hooks and is captured as it stands."""
    labels: dict[str, str] = field(default_factory=dict)


class Sandbox(Protocol):
    """One live sandbox.  Everything else is read from ``/proc/<init_pid>`` (see ``view``)."""

    @property
    def name(self) -> str:
        """The name people use."""

    @property
    def init_pid(self) -> int:
        """Pid of the supervisor (pid 1 inside) in the agent's pid namespace."""

    @property
    def control(self) -> ControlDirectory:
        """The control directory, as a host path."""

    @property
    def spec(self) -> SandboxSpec:
        """What the sandbox was made from."""

    @property
    def address(self) -> str:
        """IPv4 address at which the worker is reached."""

    def alive(self) -> None:
        """Return while the supervisor lives; raise HotstartError ``sandbox-dead`` once it does not."""
