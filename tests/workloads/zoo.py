"""The workload zoo: small programs that hold what workers hold, and check themselves byte by byte.

After CRIU's zdtm.  Each program prepares state, says ``ready`` on its standard output, waits until a file ``go``
appears in its working directory, checks its state, says ``BAD <what>`` for each difference and ``OK`` if there is none,
and exits with 0 or 1 (2: the state could not be prepared).  What happens between ``ready`` and ``go`` is up to the
test: nothing (that proves the zoo itself), or a capture and a restore.

    run = start(BY_NAME["channels"], directory)     # or command() and environment() in a sandbox
    run.wait_ready()
    run.go()
    assert run.result() == Result(0, ("OK",))
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tools.cache import cache_root

HERE = Path(__file__).resolve().parent
READY = "ready"
GO = "go"
_LIBRARIES = ("/usr/lib", "/usr/lib64", f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/local/lib")


@dataclass(frozen=True)
class Workload:
    """One program of the zoo, as a test needs to know it."""

    name: str
    source: str
    """``.c`` or ``.py`` beside this file, or the directory of a Go module."""
    about: str
    arguments: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """For the C compiler."""
    preload: str = ""
    """A library of the system for LD_PRELOAD."""
    env: dict[str, str] = field(default_factory=dict, hash=False)
    root: bool = False
    """It needs root."""
    lower: bool = False
    """It changes files that were there before it: ``prepare`` makes them in its working directory."""
    members: tuple[str, ...] = ()
    """Names of the workloads that it runs, each in a directory of its own below the working directory."""
    refused: str = ""
    """Reason code with which preflight refuses it; empty: it can be captured."""
    prevented: bool = False
    """A sandbox does not let it come so far (filter, capabilities, devices): it says ``BAD preparing`` there."""
    seconds: float = 60.0
    """It is ready, and done after ``go``, within this time each."""


_ALLOCATOR = "fills, frees, purges and allocates again, and wants zeros where zeros are promised"
_BARE_32 = ("-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-pie", "-no-pie", "-fno-stack-protector")

CAPTURED = (
    Workload("forks", "forks.c", "processes with different bytes in the same ranges, and shared ones"),
    Workload("threads", "threads.c", "thread-local storage, stacks, locks, names, masks", flags=("-pthread",)),
    Workload("channels", "channels.c", "pipes and sockets of every kind, with data in flight"),
    Workload("events", "events.c", "eventfd, epoll, timers, signals that wait"),
    Workload("shared", "shared.c", "memfd, POSIX shared memory, semaphores", flags=("-pthread",)),
    Workload("files", "files.c", "offsets, locks, deleted and renamed files, logs, mappings of files"),
    Workload("rootfs", "rootfs.py", "files changed, made, deleted and renamed; tmpfs", lower=True),
    Workload("attributes", "attributes.c", "limits, priority, masks, handlers, names, working directory, environment"),
    Workload("ranges", "ranges.c", "heap, guards, reservations, locked and executable memory, hundreds of ranges"),
    Workload("mutator", "mutator.c", "writes, drops and remaps all the time"),
    Workload("glibc", "allocator.c", _ALLOCATOR, flags=("-pthread", "-ldl")),
    Workload("glibc-static", "allocator.c", _ALLOCATOR, flags=("-DSTATIC", "-static", "-pthread")),
    Workload("jemalloc", "allocator.c", _ALLOCATOR, ("jemalloc",), ("-pthread", "-ldl"), "libjemalloc.so.2"),
    Workload("goheap", "goheap", "a large Go heap, given back and allocated again"),
    Workload("semantics", "semantics.c", "drops, moves and grows memory: EINVAL is right, wrong bytes are not"),
)
_MEMBERS = ("forks", "threads", "channels", "events", "shared", "files", "rootfs", "attributes", "ranges", "semantics")
EVERYTHING = Workload("everything", "everything.py", "ten programs at once", members=_MEMBERS, seconds=120)

REFUSED = (
    Workload("io-uring", "refused.py", "holds an io_uring", ("io-uring",), refused="io-uring", prevented=True),
    Workload("inotify", "refused.py", "watches a file on overlayfs", ("inotify",), refused="inotify-overlay"),
    Workload("outside-tcp", "refused.py", "talks with ZOO_PEER outside", ("outside-tcp",), refused="outside-tcp"),
    Workload("user-namespace", "refused.py", "a user namespace", ("user-namespace",), refused="user-namespace"),
    Workload(
        "uts-namespace", "refused.py", "other namespaces", ("uts-namespace",), root=True, refused="foreign-namespace"
    ),
    Workload(
        "net-namespace", "refused.py", "other namespaces", ("net-namespace",), root=True, refused="foreign-namespace"
    ),
    Workload("traced", "refused.py", "is being traced", ("traced",), refused="traced"),
    Workload(
        "device", "refused.py", "holds a device open", ("device",), root=True, refused="device-open", prevented=True
    ),
    Workload("eventfd-semaphore", "refused.py", "an eventfd", ("eventfd-semaphore",), refused="undumpable-fd"),
    Workload("sysv", "refused.py", "System V shared memory", ("sysv",), refused="sysv-ipc"),
    Workload("message-queue", "refused.py", "a POSIX message queue", ("message-queue",), refused="sysv-ipc"),
    Workload("thirty-two-bit", "thirtytwo.c", "is not 64 bit", flags=_BARE_32, refused="thirty-two-bit"),
)
"""A stray process is made by the test: it enters the sandbox from outside."""
ALL = (*CAPTURED, EVERYTHING, *REFUSED)
BY_NAME = {workload.name: workload for workload in ALL}


@dataclass(frozen=True)
class Result:
    """How a program ended: its exit code (negative: the signal) and what it said after ``ready``."""

    code: int
    said: tuple[str, ...]


OK = Result(0, ("OK",))


def missing(workload: Workload) -> str:
    """What this machine lacks for the workload; empty if nothing."""
    for name in workload.members:
        if lack := missing(BY_NAME[name]):
            return lack
    if workload.root and os.geteuid() != 0:
        return "root"
    if workload.source.endswith(".c") and shutil.which("cc") is None:
        return "a C compiler"
    if _is_go(workload) and shutil.which("go") is None:
        return "Go"
    if workload.preload and _library(workload.preload) is None:
        return workload.preload
    if "-m32" in workload.flags and platform.machine() != "x86_64":
        return "an x86-64 machine"
    return ""


def command(workload: Workload) -> tuple[str, ...]:
    """The command line, after building what needs building.  Raises CalledProcessError with the compiler's words."""
    if workload.members:
        members = [BY_NAME[name] for name in workload.members]
        told = [{"name": m.name, "command": command(m), "env": environment(m)} for m in members]
        return (*_python(workload.source), json.dumps(told))
    if workload.source.endswith(".py"):
        return (*_python(workload.source), *workload.arguments)
    return (str(_build(workload)), *workload.arguments)


def environment(workload: Workload) -> dict[str, str]:
    """Every variable that it is started with."""
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LC_ALL": "C.UTF-8", **workload.env}
    if workload.preload:
        env["LD_PRELOAD"] = str(_library(workload.preload))
    return env


def prepare(workload: Workload, directory: Path) -> None:
    """Make the files that it (or its members) must find: before the sandbox, so that they lie in its lower layer."""
    if workload.lower:
        _prepare_lower(directory)
    for name in workload.members:
        prepare(BY_NAME[name], directory / name)


def _prepare_lower(directory: Path) -> None:
    lower = directory / "lower"
    for name in ("keep", "change", "append", "delete", "rename", "link", "chmod", "xattr", "replace"):
        (lower / "files").mkdir(parents=True, exist_ok=True)
        (lower / "files" / name).write_text(f"lower {name}\n" * 100)
    for name in ("remove", "recreate", "move"):
        (lower / name / "inner").mkdir(parents=True)
        (lower / name / "file").write_text(f"lower {name} file\n")
        (lower / name / "inner" / "deep").write_text(f"lower {name} deep\n")
    (lower / "files" / "symlink").symlink_to("keep")


class Run:
    """A program that runs outside of any sandbox."""

    def __init__(self, workload: Workload, directory: Path, process: subprocess.Popen[bytes], output: Path) -> None:
        self.workload = workload
        self.directory = directory
        self.process = process
        self.output = output

    def said(self) -> tuple[str, ...]:
        """Lines so far."""
        return tuple(self.output.read_text(errors="replace").splitlines())

    def wait_ready(self) -> None:
        """Return when it has said ``ready``; AssertionError with its words if it ends or takes too long."""
        until = time.monotonic() + self.workload.seconds
        while READY not in self.said():
            assert self.process.poll() is None, f"{self.workload.name} ended: {self.said()}"
            assert time.monotonic() < until, f"{self.workload.name} is not ready: {self.said()}"
            time.sleep(0.02)

    def go(self) -> None:
        """Let it check itself."""
        (self.directory / GO).touch()

    def result(self) -> Result:
        """Wait for its end."""
        code = self.process.wait(self.workload.seconds)
        said = self.said()
        told = said[said.index(READY) + 1 :] if READY in said else said
        return Result(code, tuple(line for line in told if not line.startswith("note:")))

    def end(self) -> None:
        """Kill what is left of it: the processes that work in its directory or below."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if (entry / "cwd").readlink().is_relative_to(self.directory):
                        os.kill(int(entry.name), signal.SIGKILL)
        self.process.kill()
        self.process.wait()


def start(workload: Workload, directory: Path, env: dict[str, str] | None = None) -> Run:
    """Start it in ``directory`` (which holds its files and its output), as leader of a session; ``env`` is added."""
    prepare(workload, directory)
    output = directory / "output"
    with output.open("wb") as out:
        process = subprocess.Popen(
            command(workload),
            cwd=directory,
            env=environment(workload) | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    return Run(workload, directory, process, output)


def _is_go(workload: Workload) -> bool:
    return not Path(workload.source).suffix


def _library(name: str) -> Path | None:
    return next((path for d in _LIBRARIES if (path := Path(d, name)).exists()), None)


def _python(source: str) -> tuple[str, ...]:
    """A program in Python and the system's own interpreter for it: both where any user can read them."""
    names = (source, "speech.py")
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in names)).hexdigest()[:16]
    target = cache_root() / "workloads" / f"python-{digest}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch, "program")
            made.mkdir()
            for name in names:
                shutil.copyfile(HERE / name, made / name)
                (made / name).chmod(0o644)
            made.chmod(0o755)
            with contextlib.suppress(OSError):  # another test was faster
                made.rename(target)
    system = Path("/usr/bin/python3")  # ours may lie below root's home
    return (str(system if system.exists() else Path(sys.executable).resolve()), "-I", str(target / source))


def _build(workload: Workload) -> Path:
    """The compiled program, in the project's cache under a name that changes with its sources."""
    source = HERE / workload.source
    sources = sorted(source.iterdir()) if source.is_dir() else [source, HERE / "zoo.h"]
    digest = hashlib.sha256(repr(workload.flags).encode())
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    target = cache_root() / "workloads" / f"{workload.name}-{digest.hexdigest()[:16]}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch, "program")
        _compile_go(source, made) if _is_go(workload) else _compile_c(source, made, workload.flags)
        made.chmod(0o755)
        made.replace(target)
    return target


def _compile_c(source: Path, target: Path, flags: tuple[str, ...]) -> None:
    options = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror")
    _check(["cc", *options, f"-I{HERE}", "-o", str(target), str(source), *flags], dict(os.environ))


def _compile_go(source: Path, target: Path) -> None:
    env = os.environ | {
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-trimpath",
        "GOCACHE": str(cache_root() / "go-build"),
        "GOPATH": str(target.parent / "go"),
    }
    _check(["go", "build", "-o", str(target), "."], env, source)


def _check(command: list[str], env: dict[str, str], directory: Path = HERE) -> None:
    done = subprocess.run(
        command, env=env, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stdout.decode(errors='replace')}")
