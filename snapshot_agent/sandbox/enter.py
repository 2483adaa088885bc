"""Inside a helper process: enter a sandbox's namespaces, do steps there, and start CRIU (or another program) in them.

The helper is exec'ed fresh and has one thread, because setns(mnt) refuses a process with threads and because forking a
process that holds grpc or a thread pool is unsound.  It imports everything before it enters: afterwards the sandbox's
files are the only ones it sees.  The agent's side of the conversation is ``helper``.

Conversation (SOCK_SEQPACKET, JSON messages, descriptors by SCM_RIGHTS):

    agent  → helper   plan: {"cgroups", "next_pid", "steps", "exec", "env", "remove", "fds"} + descriptors in that order
    helper → agent    {"step": name, "start", "end"}      after each step (monotonic seconds)
    helper → agent    {"ready": {name: number}} + [the program's RPC socket]
    helper → agent    {"error": text, "errno": n, "step": name} and ends with status 1
    helper → agent    {"exit": status}                   when the program has ended
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from hotstart.linux.syscalls import NAMESPACE_FLAGS, PR_SET_PDEATHSIG, fork_into, prctl, setns

KERNDAT = "/run/criu.kdat"
MAX_FDS = 64
MAX_MESSAGE = 1 << 20
Step = Callable[[dict[str, Any], Mapping[str, int]], object]
_ORDER = ("net", "ipc", "uts", "cgroup", "pid", "mnt")


def serve(channel_fd: int, steps: Mapping[str, Step]) -> int:
    """The helper's main: wait for the plan, carry it out, return the exit status."""
    channel = socket.socket(fileno=channel_fd)
    data, fds, _flags, _address = socket.recv_fds(channel, MAX_MESSAGE, MAX_FDS)
    if not data:
        return 0  # the agent went away before it had a plan
    plan = json.loads(data)
    table = dict(zip(plan["fds"], fds, strict=True))
    where = "enter"
    try:
        unified = join_cgroups(plan.get("cgroups", []))
        last_pid = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY | os.O_CLOEXEC) if plan.get("next_pid") else -1
        for name in _ORDER:
            if f"ns:{name}" in table:
                setns(table[f"ns:{name}"], NAMESPACE_FLAGS[name])
    except OSError as error:
        return _fail(channel, where, error)
    child = fork_into(0, unified)  # setns(pid) takes effect for children only
    if child == 0:
        os._exit(_inside(channel, plan, table, steps, last_pid))
    _pid, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


def place_kerndat(_entry: dict[str, Any], fds: Mapping[str, int]) -> None:
    """Step ``kerndat``: give CRIU its own cache of kernel features instead of whatever lies in the sandbox's /run."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(KERNDAT)
    if "kerndat" not in fds:
        return
    with contextlib.suppress(OSError):  # no /run, or a full one: CRIU probes the kernel itself
        fd = os.open(KERNDAT, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, os.pread(fds["kerndat"], 1 << 20, 0))
        finally:
            os.close(fd)


def join_cgroups(directories: list[str]) -> int:
    """Move the caller into v1 cgroups, so that what it starts is charged there; returns the v2 one's descriptor, or -1.

    Writing to cgroup.procs costs an RCU grace period (8 to 20 ms, measured).  ``tasks`` of v1 does not, and for v2 the
    child is born inside (``fork_into``): the caller has one thread, so both mean the same.
    """
    unified = -1
    for directory in directories:
        if os.path.exists(f"{directory}/cgroup.controllers"):
            unified = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            continue
        fd = os.open(f"{directory}/tasks", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)
    return unified


def _inside(
    channel: socket.socket, plan: dict[str, Any], table: dict[str, int], steps: Mapping[str, Step], last_pid: int
) -> int:
    """In the pid namespace: steps, then the program, whose parent this process stays until it ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    where = "enter"
    try:
        for entry in plan.get("steps", []):
            where = entry["do"]
            start = time.monotonic()
            steps[where](entry, table)
            _send(channel, {"step": where, "start": start, "end": time.monotonic()})
        where = "exec"
        if not plan.get("exec"):
            return 0
        # Made here: CRIU resolves descriptor numbers of a request as /proc/<peer's pid>/fd/N in its own pid namespace.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if last_pid >= 0:
            os.write(last_pid, str(plan["next_pid"] - 1).encode())
        program = os.fork()
        if program == 0:
            ours.close()
            _exec(plan, table, theirs.fileno())
        theirs.close()
        _send(
            channel, {"ready": {name: fd for name, fd in table.items() if not name.startswith("ns:")}}, [ours.fileno()]
        )
        ours.close()
        _pid, status = os.waitpid(program, 0)
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):
            _send(channel, {"exit": code})
        return code & 0xFF
    except Exception as error:  # noqa: BLE001 - everything must reach the agent as one message
        return _fail(channel, where, error)
    finally:
        for path in plan.get("remove", []):  # also when the agent is gone and nobody listens any more
            with contextlib.suppress(OSError):
                os.unlink(path)


def _exec(plan: dict[str, Any], table: dict[str, int], rpc: int) -> None:
    """Replace this process by the program; descriptors of the table keep their numbers, except the namespaces'."""
    try:
        out = table.get("output", -1)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(out if out >= 0 else null, 1)
        os.dup2(out if out >= 0 else null, 2)
        for name, fd in table.items():
            if not name.startswith("ns:"):
                os.set_inheritable(fd, True)
        os.set_inheritable(rpc, True)
        fill = {"rpc": str(rpc), **{name: str(fd) for name, fd in table.items()}}
        argv = [word.format_map(fill) for word in plan["exec"]]
        os.execve(argv[0], argv, plan.get("env", {}))
    except BaseException as error:  # noqa: BLE001 - in a forked child nothing may unwind
        os.write(2, f"hotstart helper: {error}\n".encode())
        os._exit(126)


def _send(channel: socket.socket, message: dict[str, Any], fds: list[int] | None = None) -> None:
    socket.send_fds(channel, [json.dumps(message).encode()], fds or [])


def _fail(channel: socket.socket, where: str, error: BaseException) -> int:
    message = {"error": f"{type(error).__name__}: {error}", "step": where, "errno": getattr(error, "errno", 0) or 0}
    reason = getattr(error, "reason", None)
    if reason is not None:
        message |= {"reason": reason.code, "error": error.args[0] if error.args else str(error)}
    with contextlib.suppress(OSError):
        _send(channel, message)
    return 1


def main(steps: Mapping[str, Step]) -> None:
    """Entry of a helper program: ``python -c '…' CHANNEL_FD``."""
    sys.exit(serve(int(sys.argv[-1]), steps))
