"""The audit: each rule on made-up facts, and the facts of a real process that holds what cannot be captured."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hotstart import audit
from hotstart.audit import TCP_CLOSE, TCP_ESTABLISHED, TCP_LISTEN, TCP_TIME_WAIT, Descriptor, Endpoint, Facts, Process

HOME = {"user": "user:[1]", "net": "net:[2]", "pid": "pid:[3]"}


def _judge(*descriptors: Descriptor, at_rest: bool = False, **changes: object) -> list[tuple[str, bool]]:
    process = replace(Process(5, "worker", namespaces=HOME, inner_pid=105), descriptors=descriptors, **changes)  # type: ignore[arg-type]
    facts = Facts((process,), namespaces=HOME)
    return [(finding.reason.code, finding.fatal) for finding in audit.judge(facts, at_rest=at_rest)]


@pytest.mark.parametrize(
    ("descriptor", "code"),
    [
        (Descriptor(3, "anon_inode:[io_uring]"), "io-uring"),
        (Descriptor(3, "anon_inode:inotify", watched=frozenset({"overlay"})), "inotify-overlay"),
        (Descriptor(3, "anon_inode:[fanotify]", watched=frozenset({"tmpfs", "overlay"})), "inotify-overlay"),
        (Descriptor(3, "anon_inode:[userfaultfd]"), "undumpable-fd"),
        (Descriptor(3, "anon_inode:[perf_event]"), "undumpable-fd"),
        (Descriptor(3, "anon_inode:bpf-map"), "undumpable-fd"),
        (Descriptor(3, "anon_inode:[pidfd]", pidfd_of=7), "undumpable-fd"),
        (Descriptor(3, "pidfd:[77]", pidfd_of=7), "undumpable-fd"),
        (Descriptor(3, "/secretmem (deleted)", file_system=None), "undumpable-fd"),
        (Descriptor(3, "/tmp/big (deleted)", file_system="overlay", deleted_bytes=(64 << 20) + 1), "undumpable-fd"),
        (Descriptor(3, "/dev/nvidia0", device=(195, 0), file_system="tmpfs"), "gpu-worker"),
        (Descriptor(3, "/dev/dri/renderD128", device=(226, 128), file_system="tmpfs"), "gpu-worker"),
        (Descriptor(3, "/dev/fuse", device=(10, 229), file_system="tmpfs"), "device-open"),
        (Descriptor(3, "/queue", file_system="mqueue"), "sysv-ipc"),
        (Descriptor(3, "/root/.cache/huggingface/xet/logs/a.log", file_system="overlay"), "rotating-cache"),
        (Descriptor(3, "/etc/hosts", file_system=None), "outside-file"),
    ],
)
def test_descriptors_that_forbid_a_capture(descriptor: Descriptor, code: str) -> None:
    assert _judge(descriptor) == [(code, True)]


@pytest.mark.parametrize(
    "descriptor",
    [
        Descriptor(3, "anon_inode:[eventpoll]"),
        Descriptor(3, "anon_inode:[eventfd]"),
        Descriptor(3, "anon_inode:[timerfd]"),
        Descriptor(3, "anon_inode:[signalfd]"),
        Descriptor(3, "anon_inode:inotify", watched=frozenset({"tmpfs"})),
        Descriptor(3, "anon_inode:[pidfd]", pidfd_of=105),  # as the process itself sees the pid
        Descriptor(3, "anon_inode:[pidfd]", pidfd_of=-1),
        Descriptor(3, "/memfd:x (deleted)", file_system=None, deleted_bytes=1 << 40),
        Descriptor(3, "/tmp/small (deleted)", file_system="overlay", deleted_bytes=64 << 20),
        Descriptor(3, "/dev/null", device=(1, 3), file_system="tmpfs"),
        Descriptor(3, "/dev/urandom", device=(1, 9), file_system="tmpfs"),
        Descriptor(3, "/dev/pts/4", device=(136, 4), file_system="devpts"),
        Descriptor(3, "/usr/lib/x.so", file_system="overlay"),
        Descriptor(3, "pipe:[9]"),
        Descriptor(3, "socket:[9]"),
    ],
)
def test_descriptors_that_do_not(descriptor: Descriptor) -> None:
    assert _judge(descriptor) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"tracer": 9}, "traced"),
        ({"bits": 32}, "thirty-two-bit"),
        ({"too_many": True}, "undumpable-fd"),
        ({"namespaces": {**HOME, "net": "net:[9]"}}, "foreign-namespace"),
        ({"namespaces": {**HOME, "user": "user:[9]"}}, "user-namespace"),
    ],
)
def test_processes_that_forbid_a_capture(changes: dict[str, object], code: str) -> None:
    assert _judge(**changes) == [(code, True)]  # type: ignore[arg-type]


def test_a_hidden_process_is_mentioned() -> None:
    assert _judge(hidden=True) == [("hidden-process", False)]


def test_sandbox_findings() -> None:
    facts = Facts((), in_user_namespace=True, sysv_objects=2)
    assert [finding.reason.code for finding in audit.judge(facts)] == ["user-namespace", "sysv-ipc"]
    assert audit.judge(Facts((), sysv_objects=None)) == []


def _endpoints(*endpoints: Endpoint, at_rest: bool = False) -> list[tuple[str, bool]]:
    return [(f.reason.code, f.fatal) for f in audit.judge(Facts((), endpoints), at_rest=at_rest)]


def _end(local: str, remote: str, state: int, protocol: str = "tcp", network: str = "net:[2]") -> Endpoint:
    ends = [(address, int(port)) for address, _, port in (end.rpartition(":") for end in (local, remote))]
    return Endpoint(protocol, network, ends[0], ends[1], state, 1)


def test_a_peer_outside() -> None:
    assert _endpoints(_end("10.0.0.2:40000", "93.184.216.34:443", TCP_ESTABLISHED)) == [("outside-tcp", True)]
    assert _endpoints(_end("10.0.0.2:40000", "93.184.216.34:443", 2)) == [("outside-tcp", True)]  # SYN_SENT


def test_a_closed_connection_is_none() -> None:
    assert _endpoints(_end("10.0.0.2:40000", "93.184.216.34:443", TCP_TIME_WAIT)) == []
    assert _endpoints(_end("0.0.0.0:0", "0.0.0.0:0", TCP_CLOSE)) == []


def test_both_ends_inside() -> None:
    ends = _end("127.0.0.1:40000", "127.0.0.1:9000", 1), _end("127.0.0.1:9000", "127.0.0.1:40000", 1)
    assert _endpoints(*ends) == []
    assert _endpoints(ends[0]) == [("outside-tcp", True)]
    elsewhere = replace(ends[1], network="net:[9]")  # the same numbers in another network are somebody else
    assert [code for code, _ in _endpoints(ends[0], elsewhere)] == ["outside-tcp", "outside-tcp"]


def test_a_client_is_drained_before_the_rest_and_forbidden_in_it() -> None:
    ends = _end("0.0.0.0:8000", "0.0.0.0:0", TCP_LISTEN), _end("10.0.0.2:8000", "10.0.0.1:5000", TCP_ESTABLISHED)
    assert _endpoints(*ends) == [("incoming-tcp", False)]
    assert _endpoints(*ends, at_rest=True) == [("incoming-tcp", True)]


def test_addresses_that_a_copy_does_not_have() -> None:
    assert _endpoints(_end("10.0.0.2:8000", "0.0.0.0:0", TCP_LISTEN)) == [("bound-address", True)]
    assert _endpoints(_end("10.0.0.2:68", "0.0.0.0:0", TCP_CLOSE, "udp")) == [("outside-udp", True)]
    for address in ("0.0.0.0", "127.0.0.2", "::", "::1"):
        assert _endpoints(_end(f"{address}:8000", "0.0.0.0:0", TCP_LISTEN)) == []


# --- facts of real processes ----------------------------------------------------------------------------------------

HOLDER = """
import ctypes, os, select, socket, sys, tempfile
libc = ctypes.CDLL(None)
if "io_uring" in sys.argv:
    params = ctypes.create_string_buffer(120)
    assert libc.syscall(425, 4, params) >= 0
if "inotify" in sys.argv:
    fd = libc.inotify_init()
    assert libc.inotify_add_watch(fd, b"/proc/self", 0x100) >= 0
if "userfaultfd" in sys.argv:
    assert libc.syscall(323, 1) >= 0
if "deleted" in sys.argv:
    file = tempfile.TemporaryFile()
    file.truncate((64 << 20) + 1)
if "plain" in sys.argv:
    held = [select.epoll(), os.memfd_create("x"), open("/dev/null"), open("/dev/urandom"), socket.socketpair()]
    server = socket.create_server(("127.0.0.1", 0))
    ends = socket.create_connection(server.getsockname()), server.accept()
    six = socket.create_server(("::1", 0), family=socket.AF_INET6)
    six_ends = socket.create_connection(six.getsockname()[:2]), six.accept()
if "outside" in sys.argv:
    peer = socket.create_connection(("127.0.0.1", int(sys.argv[-1])))
if "clients" in sys.argv:
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)
    client = server.accept()
if "child" in sys.argv and os.fork() == 0:
    sys.argv = []
    os.write(1, b"%d\\n" % os.getpid())  # in one piece: the parent writes too
    sys.stdin.read()
    os._exit(0)
os.write(1, b"holds\\n")
sys.stdin.read()
"""


@contextlib.contextmanager
def _holder(*what: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, *what]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _findings(process: subprocess.Popen[str], *, at_rest: bool = False) -> list[tuple[str, str]]:
    assert process.stdout is not None
    assert process.stdout.readline() == "holds\n"
    facts = audit.gather(audit.tree(process.pid), reference=process.pid)
    return [(finding.reason.code, finding.found) for finding in audit.judge(facts, at_rest=at_rest)]


def test_what_processes_usually_hold_is_no_finding() -> None:
    with _holder("plain") as process:
        assert _findings(process, at_rest=True) == []


@pytest.mark.parametrize(
    ("what", "number", "code", "found"),
    [
        ("io_uring", 425, "io-uring", "an io_uring"),
        ("userfaultfd", 323, "undumpable-fd", "[userfaultfd]"),
        ("deleted", 0, "undumpable-fd", f"a deleted file of {(64 << 20) + 1} bytes"),
    ],
)
def test_what_a_real_process_holds_is_found(what: str, number: int, code: str, found: str) -> None:
    if number:
        fd = ctypes.CDLL(None).syscall(number, 4 if number == 425 else 1, ctypes.create_string_buffer(120))
        if fd < 0:
            pytest.skip(f"{what} cannot be made here")
        os.close(fd)
    with _holder(what) as process:
        ((got, text),) = _findings(process)
    assert got == code
    assert text.endswith(found)


def test_the_file_system_that_inotify_watches() -> None:
    with _holder("inotify") as process:
        assert process.stdout is not None
        process.stdout.readline()
        facts = audit.gather([process.pid], reference=process.pid)
    assert {frozenset({"proc"})} == {d.watched for d in facts.processes[0].descriptors if "inotify" in d.target}


def test_a_real_peer_outside() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with _holder("outside", str(port)) as process:
            ((code, text),) = _findings(process)
    assert code == "outside-tcp"
    assert text.endswith(f"to 127.0.0.1:{port}")


def test_a_real_client() -> None:
    with _holder("clients") as process:
        assert process.stdout is not None
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))):
            ((code, _),) = _findings(process)
    assert code == "incoming-tcp"


def test_the_tree_has_the_children() -> None:
    with _holder("child") as process:
        assert process.stdout is not None
        lines = sorted([process.stdout.readline().strip(), process.stdout.readline().strip()])
        child = int(lines[0])
        assert audit.tree(process.pid) == [process.pid, child]
        os.kill(child, signal.SIGKILL)


def test_a_process_that_is_gone_is_left_out() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    facts = audit.gather([gone.pid, os.getpid()], reference=os.getpid())
    assert [process.pid for process in facts.processes] == [os.getpid()]


def test_an_eventfd_that_is_a_semaphore_is_found_for_real() -> None:
    import ctypes
    import os

    semaphore = ctypes.CDLL(None).eventfd(3, 1)
    plain = os.eventfd(0)
    try:
        mine = audit.gather([os.getpid()], reference=os.getpid())
        found = {f.found for f in audit.judge(mine) if "eventfd" in f.found}
    finally:
        os.close(semaphore)
        os.close(plain)
    assert len(found) == 1
    assert found.pop().endswith("an eventfd that is a semaphore")
