"""Preflight on real sandboxes: what cannot be captured is refused with its reason, and what can be is not."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotstart import audit
from hotstart.errors import HotstartError
from hotstart.findings import Finding
from hotstart.linux.syscalls import MS_NOEXEC, mount, umount
from hotstart.snapshot_agent.preflight import checks, worker
from hotstart.snapshot_agent.sandbox import view
from hotstart.snapshot_agent.sandbox.contract import Volume
from hotstart.snapshot_agent.sandbox.local import LocalSandbox
from tests.conftest import Sandboxes, eventually

pytestmark = pytest.mark.root

PROLOGUE = """
import ctypes, mmap, os, signal, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def ready():
    print("ready", flush=True)
    signal.pause()
"""


def _start(sandboxes: Sandboxes, code: str, **more: object) -> LocalSandbox:
    """A sandbox whose program has run ``code`` and now rests."""
    sandbox = sandboxes.run(sys.executable, "-c", PROLOGUE + code + "\nready()\n", **more)
    eventually(lambda: "ready" in sandboxes.log(sandbox) or sandbox.exit_status() is not None)
    assert sandbox.exit_status() is None, sandboxes.log(sandbox)
    return sandbox


def _check(sandbox: LocalSandbox, store: Path) -> list[Finding]:
    return checks.check_capture(sandbox.init_pid, store)


def _refused(sandbox: LocalSandbox, store: Path) -> set[str]:
    return {finding.reason.code for finding in _check(sandbox, store) if finding.fatal}


GOOD = """
held = [os.memfd_create("m"), *os.pipe()]
server = socket.create_server(("0.0.0.0", 8000))
inner = socket.create_connection(("127.0.0.1", 8000))
accepted, _ = server.accept()
pair = socket.socketpair()
poll = __import__("select").epoll()
thread = threading.Thread(target=time.sleep, args=(1000,), daemon=True)
thread.start()
child = subprocess.Popen(["sleep", "1000"])
log = open("/tmp/log", "a")
"""


def test_what_workers_hold_is_no_finding(sandboxes: Sandboxes, tmp_path: Path) -> None:
    assert _check(_start(sandboxes, GOOD, engine="none"), tmp_path) == []


REFUSED = {
    "a watch on overlayfs": (
        "fd = libc.inotify_init1(0); assert libc.inotify_add_watch(fd, b'/usr', 0x100) > 0",
        {"inotify-overlay"},
    ),
    "a user namespace": (
        "subprocess.Popen(['unshare', '--user', 'sleep', '1000']); time.sleep(0.3)",
        {"user-namespace"},
    ),
    "namespaces within a user namespace": (
        "subprocess.Popen(['unshare', '--user', '--net', '--mount', 'sleep', '1000']); time.sleep(0.3)",
        {"user-namespace", "foreign-namespace"},
    ),
    "System V shared memory": ("assert libc.shmget(0, 4096, 0o1600) >= 0", {"sysv-ipc"}),
    "System V semaphores": ("assert libc.semget(0, 1, 0o1600) >= 0", {"sysv-ipc"}),
    "a System V message queue": ("assert libc.msgget(0, 0o1600) >= 0", {"sysv-ipc"}),
    "a POSIX message queue that nobody has open": (
        """
rt = ctypes.CDLL("librt.so.1", use_errno=True)
queue = rt.mq_open(b"/jobs", os.O_CREAT | os.O_RDWR, 0o600, None)
assert queue >= 0, ctypes.get_errno()
os.close(queue)
""",
        {"sysv-ipc"},
    ),
    "a tracer": (
        """
child = subprocess.Popen(["sleep", "1000"])
assert libc.ptrace(0x4206, child.pid, None, None) == 0
""",
        {"traced"},
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_captured_is_refused(sandboxes: Sandboxes, tmp_path: Path, what: str) -> None:
    code, reasons = REFUSED[what]
    sandbox = _start(sandboxes, code, engine="none")
    assert _refused(sandbox, tmp_path) == reasons
    assert sandbox.lives(), "a preflight disturbs nobody"


def test_a_peer_outside_the_sandbox(sandboxes: Sandboxes, tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:  # the sandbox's end of the link must reach it
        port = server.getsockname()[1]
        code = f"""
gateway = next(line.split()[2] for line in open("/proc/net/route") if line.split()[1] == "00000000")
address = socket.inet_ntoa(int(gateway, 16).to_bytes(4, "little"))
connection = socket.create_connection((address, {port}), timeout=5)
"""
        sandbox = _start(sandboxes, code, engine="none")
        (finding,) = _check(sandbox, tmp_path)
        assert finding.reason.code == "outside-tcp"
        assert f":{port}" in finding.found
        assert ipaddress.ip_address(sandbox.address)


def test_a_stray_is_named(sandboxes: Sandboxes, tmp_path: Path) -> None:
    """As ``kubectl exec`` would bring it: in the sandbox's namespaces, but not below the worker."""
    sandbox = _start(sandboxes, "", engine="none")
    enter = ["nsenter", f"--target={sandbox.init_pid}", "--all", "sleep", "1000"]
    with subprocess.Popen(enter, start_new_session=True) as stray:
        try:
            eventually(lambda: view.strays(sandbox.init_pid))
            eventually(lambda: any("sleep" in finding.subject for finding in _check(sandbox, tmp_path)))
            assert _refused(sandbox, tmp_path) == {"stray-process"}
        finally:
            os.killpg(stray.pid, signal.SIGKILL)


def test_a_device_is_refused() -> None:
    with open("/dev/kmsg", "rb", buffering=0) as kmsg, _holder(kmsg.fileno()) as pid:
        findings = audit.judge(audit.gather([pid], reference=pid))
    assert [finding.reason.code for finding in findings] == ["device-open"]


def test_a_thread_that_left_is_found() -> None:
    """With root's capabilities, which a sandbox's worker does not have; a pod's may."""
    code = """
done = threading.Event()
def leave():
    assert libc.unshare(0x40000000) == 0
    done.set()
    time.sleep(1000)
threading.Thread(target=leave, daemon=True).start()
done.wait()
ready()
"""
    with subprocess.Popen([sys.executable, "-c", PROLOGUE + code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert worker.odd_threads([process.pid, os.getpid()]) == [(process.pid, "net")]
        finally:
            process.kill()


def test_an_io_uring_is_refused() -> None:
    """Outside of a sandbox, whose filter refuses it from the start."""
    code = (
        "import liburing, signal; r = liburing.Ring(); liburing.io_uring_queue_init(4, r); print('ready', flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code + "; signal.pause()"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            findings = audit.judge(audit.gather([process.pid], reference=process.pid))
        finally:
            process.kill()
    assert [finding.reason.code for finding in findings] == ["io-uring"]


@contextlib.contextmanager
def _holder(fd: int) -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"], pass_fds=[fd], stdin=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def small_noexec(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB on which nothing may be executed."""
    point = tmp_path / "small"
    point.mkdir()
    mount("hotstart-test", str(point), "tmpfs", MS_NOEXEC, "size=1m")
    try:
        yield point
    finally:
        umount(str(point))


def test_a_full_disk_is_told_before_the_worker_is_touched(sandboxes: Sandboxes, small_noexec: Path) -> None:
    sandbox = _start(sandboxes, "ballast = bytes([1]) * (64 << 20)", engine="none")
    findings = {finding.reason.code: finding for finding in _check(sandbox, small_noexec / "snapshots")}
    assert findings.keys() == {"disk-full", "noexec-store"}
    assert findings["disk-full"].fatal
    assert "free" in findings["disk-full"].found
    assert not findings["noexec-store"].fatal, "its memory is copied then"


def test_content_is_bounded_from_above(sandboxes: Sandboxes) -> None:
    code = """
ballast = bytes([1]) * (32 << 20)
os.makedirs("/var/tmp/cache")
open("/var/tmp/cache/file", "wb").write(bytes([2]) * (8 << 20))
open("/dev/shm/ring", "wb").write(bytes([3]) * (4 << 20))
if os.fork() == 0:
    signal.pause()
"""
    sandbox = _start(sandboxes, code, engine="none")
    pids = [task.pid for task in view.tree(sandbox.init_pid)]
    exact, quick = (worker.content(sandbox.init_pid, pids, exact=exact) for exact in (True, False))
    assert exact.memory >= 32 << 20
    assert quick.memory >= exact.memory + (30 << 20), "the child's share of the ballast counts again"
    assert exact.upper >= 8 << 20
    assert exact.tmpfs >= 4 << 20
    assert max(exact.upper, exact.tmpfs) < 16 << 20


def test_facts_name_the_libraries_and_not_what_travels(sandboxes: Sandboxes) -> None:
    code = """
import shutil
own = "/opt/own.so"
os.makedirs("/opt", exist_ok=True)
shutil.copy(next(l.split()[-1] for l in open("/proc/self/maps") if "libc.so" in l or "libc-" in l), own)
mapped = mmap.mmap(os.open(own, os.O_RDONLY), 0, prot=mmap.PROT_READ)
"""
    sandbox = _start(sandboxes, code, engine="none")
    facts = checks.capture_facts(sandbox.init_pid, sandbox.spec, "4.2.1")
    paths = {file.path for file in facts.files}
    assert os.path.realpath(sys.executable) in paths
    assert any("libc" in path for path in paths)
    assert "/opt/own.so" not in paths
    for file in facts.files:
        status = os.stat(file.path)
        assert (file.bytes, file.mtime_ns) == (status.st_size, status.st_mtime_ns)


def test_a_volume_is_outside_too(sandboxes: Sandboxes, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    weights = tmp_path / "models" / "weights"
    weights.write_bytes(b"w" * 100)
    sandbox = _start(
        sandboxes, "held = open('/models/weights')", engine="none", volumes=(Volume(str(weights.parent), "/models"),)
    )
    facts = checks.capture_facts(sandbox.init_pid, sandbox.spec, "4.2.1")
    (found,) = [file for file in facts.files if file.path.startswith("/models")]
    assert (found.path, found.bytes, found.mtime_ns) == ("/models/weights", 100, weights.stat().st_mtime_ns)


def test_a_sandbox_that_ended(sandboxes: Sandboxes, tmp_path: Path) -> None:
    sandbox = sandboxes.run("/bin/true", engine="none")
    sandboxes.wait(sandbox)
    eventually(lambda: not sandbox.lives())
    with pytest.raises(HotstartError) as caught:
        _check(sandbox, tmp_path)
    assert caught.value.reason.code == "sandbox-dead"


def test_a_preflight_is_quick(sandboxes: Sandboxes, tmp_path: Path) -> None:
    sandbox = _start(sandboxes, GOOD, engine="none")
    began = time.monotonic()
    _check(sandbox, tmp_path)
    assert time.monotonic() - began < 2, "measured: 10 ms; the bound only catches a process start or a long walk"
    assert shutil.disk_usage(tmp_path).free > 0
