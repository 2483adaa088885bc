"""Can this machine make sandboxes?  Every piece is tried for real, alone, and undone; ``doctor`` tells the results.

The attempts run in a fresh helper process and there in a forked child each, so that none of them changes the caller.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import hotstart
from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.linux import syscalls as kernel
from hotstart.names import SUBNET_ENV
from hotstart.reasons import CGROUP_UNUSABLE, KERNEL_FEATURE, NETWORK_UNUSABLE, NOT_ROOT, OVERLAY_UNUSABLE, Reason
from hotstart.snapshot_agent.sandbox import build, cgroups, network, subnet
from hotstart.snapshot_agent.sandbox.order import MERGED, UPPER, WORK

PROBE_S = 20.0
"""Seconds for all attempts together."""
_SITE = str(Path(hotstart.__file__).resolve().parent.parent)
_NAMESPACES = ("mnt", "pid", "ipc", "uts", "net", "cgroup")


@dataclass(frozen=True)
class Probe:
    """What became of one attempt."""

    name: str
    """``mnt namespace`` …, ``overlay``, ``network link``, ``freezer``."""
    reason: Reason | None
    """Why it failed; None: it works."""
    found: str
    """The failure in words; empty if it works."""


def probe(home: Path) -> list[Probe]:
    """Try all pieces of a sandbox whose files would lie in ``home``; raises ``not-root``, ``deadline``."""
    if os.geteuid() != 0:
        raise HotstartError(NOT_ROOT, "making a sandbox needs root")
    code = f"import sys; sys.path.insert(0, {_SITE!r}); from hotstart.snapshot_agent.sandbox.probe import main; main()"
    scratch = home.resolve() / f".probe-{secrets.token_hex(4)}"
    scratch.mkdir(mode=0o700, parents=True)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, str(scratch)],
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            check=False,
            env={name: value for name, value in os.environ.items() if name == SUBNET_ENV},
        )
    except subprocess.TimeoutExpired:
        Deadline.after(0, "the attempts to make the pieces of a sandbox").check()
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    said = dict(line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line)
    results = []
    for name, (reason, _attempt) in _attempts(scratch).items():
        words = said.get(name, f"the attempt died: {done.stderr.strip()[-200:]}")
        results.append(Probe(name, reason if words else None, words))
    return results


def main() -> None:
    """Entry of the helper process: carry out all attempts, one line each on standard output."""
    for name, (_reason, attempt) in _attempts(Path(sys.argv[-1])).items():
        sys.stdout.write(f"{name}\t{' '.join(_isolated(attempt).split())}\n")
        sys.stdout.flush()


def _attempts(scratch: Path) -> dict[str, tuple[Reason, Callable[[], None]]]:
    """Name → the reason of a failure, and the attempt."""

    def unshare(kind: str) -> Callable[[], None]:
        return lambda: kernel.unshare(kernel.NAMESPACE_FLAGS[kind])

    return {
        **{f"{kind} namespace": (KERNEL_FEATURE, unshare(kind)) for kind in _NAMESPACES},
        "clone3": (KERNEL_FEATURE, _clone3),
        "overlay": (OVERLAY_UNUSABLE, lambda: _overlay(scratch)),
        "network link": (NETWORK_UNUSABLE, _link),
        "freezer": (CGROUP_UNUSABLE, lambda: _freezer(scratch)),
    }


def _isolated(attempt: Callable[[], None]) -> str:
    """Run an attempt in a child; what went wrong, or nothing."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        words = ""
        try:
            attempt()
        except network.NoAddressLeft:
            words = "every link of the sandbox network is taken"
        except (OSError, HotstartError) as error:
            words = str(error)
        finally:
            os.write(writable, words.encode(errors="replace") + b"\0")
            os._exit(0)
    os.close(writable)
    with open(readable, "rb") as file:
        told = file.read()
    os.waitpid(child, 0)
    return told.rstrip(b"\0").decode(errors="replace") if told else "the attempt died"


def _clone3() -> None:
    child = kernel.fork_into(kernel.CLONE_NEWPID)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _overlay(scratch: Path) -> None:
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    for name in ("lower", UPPER, WORK, MERGED):
        (scratch / name).mkdir()
    (scratch / "lower" / "file").write_text("lower")
    merged = Path(build.mount_root(str(scratch / "lower"), str(scratch)))
    (merged / "file").unlink()
    (merged / "new").write_text("upper")


def _link() -> None:
    network.create(*subnet.network(os.environ))


def _freezer(scratch: Path) -> None:
    deadline = Deadline.after(5, "a cgroup to freeze")
    paths, unified = cgroups.create(cgroups.name_of(scratch, "probe"))
    every = [*paths, *([unified] if unified else [])]
    try:
        with _sleeper() as pid:
            v1 = [path for path in paths if (path / "freezer.state").exists()]
            where, word, state = (v1[0], "FROZEN", "freezer.state") if v1 else (unified, "1", "cgroup.freeze")
            assert where is not None
            (where / "cgroup.procs").write_text(str(pid))
            (where / state).write_text(word)
            told = where / ("freezer.state" if v1 else "cgroup.events")
            while ("FROZEN\n" if v1 else "frozen 1") not in told.read_text():
                deadline.check()
                time.sleep(0.002)
            cgroups.thaw(every)
    finally:
        cgroups.thaw(every)
        cgroups.remove(every, deadline)


@contextlib.contextmanager
def _sleeper() -> Iterator[int]:
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
