"""Can this machine do what Hotstart does?  Each check looks at, or tries, the real thing and says what it found."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hotstart import reasons
from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.findings import Finding
from hotstart.linux import procfs
from hotstart.reasons import Reason
from hotstart.snapshot_agent.criu import bundle as criu_bundle
from hotstart.snapshot_agent.preflight import rules
from hotstart.snapshot_agent.preflight.checks import criu_version
from hotstart.snapshot_agent.preflight.machine import machine, room
from hotstart.snapshot_agent.sandbox import cgroups, local
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec
from hotstart.snapshot_agent.units import size

Checked = tuple[str, bool, str, Finding | None]
"""Name, passed, what was found, the finding; a check may pass with a finding that is not fatal."""

OLDEST_KERNEL = (5, 15)
NEEDED_CAPABILITIES = {
    "chown": 0,
    "dac_override": 1,
    "fowner": 3,
    "kill": 5,
    "setgid": 6,
    "setuid": 7,
    "net_admin": 12,
    "sys_chroot": 18,
    "sys_ptrace": 19,
    "sys_admin": 21,
    "mknod": 27,
}
_SYS_RESOURCE = 24
_IO_URING_SETUP, _IO_URING_PARAMS = 425, 120
"""System call number (one for all machines) and size of its parameters."""
DISK_BYTES = 8 << 30
MEMORY_BYTES = 4 << 30
"""Below these a small model's worker and its snapshot hardly fit; told, not forbidden."""
_PROBE_SECONDS = 20.0


def examine(home: Path) -> list[Checked]:
    """All checks, the simple ones first; none raises.  ``home`` is where sandboxes and snapshots will lie."""
    checks: list[tuple[str, Callable[[Path], Checked]]] = [
        ("root", _root),
        ("capabilities", _capabilities),
        ("kernel", _kernel),
        ("checkpoint support", _checkpoint_support),
        ("seccomp", _seccomp),
        ("cgroups", _cgroups),
        ("CRIU", _criu),
        ("sandbox", _sandbox),
        ("disk", _disk),
        ("memory", _memory),
        ("io_uring", _io_uring),
        ("bytecode", _bytecode),
    ]
    return [_guarded(name, check, home) for name, check in checks]


def _guarded(name: str, check: Callable[[Path], Checked], home: Path) -> Checked:
    try:
        return check(home)
    except HotstartError as error:
        finding = Finding(error.reason, name, error.detail, "", error.next_step)
    except OSError as error:
        finding = Finding(reasons.KERNEL_FEATURE, name, str(error), "")
    return name, False, finding.found, finding


def _good(name: str, found: str) -> Checked:
    return name, True, found, None


def _bad(reason: Reason, name: str, found: str, needed: str, what_to_do: str = "") -> Checked:
    return name, False, found, Finding(reason, name, found, needed, what_to_do)


def _mild(reason: Reason, name: str, found: str, needed: str, what_to_do: str = "") -> Checked:
    return name, True, found, Finding(reason, name, found, needed, what_to_do, fatal=False)


def _root(_home: Path) -> Checked:
    uid = os.geteuid()
    if uid == 0:
        return _good("root", "yes")
    return _bad(reasons.NOT_ROOT, "root", f"user {uid}", "user 0")


def _capabilities(_home: Path) -> Checked:
    held = procfs.status("self").capabilities
    missing = [name for name, bit in NEEDED_CAPABILITIES.items() if not held >> bit & 1]
    if missing:
        found = "without " + ", ".join(f"cap_{name}" for name in missing)
        return _bad(reasons.CAPABILITY_MISSING, "capabilities", found, "all that root has")
    if not held >> _SYS_RESOURCE & 1:
        found = "all but cap_sys_resource: limits of a worker that is not root are read another way"
        return _mild(reasons.CAPABILITY_MISSING, "capabilities", found, "cap_sys_resource")
    return _good("capabilities", "all that are needed")


def _kernel(_home: Path) -> Checked:
    release = os.uname().release
    numbers = tuple(int(word) for word in release.split("-")[0].split(".")[:2] if word.isdigit())
    if numbers < OLDEST_KERNEL:
        needed = ".".join(map(str, OLDEST_KERNEL)) + " or newer"
        return _bad(reasons.KERNEL_FEATURE, "kernel", release, needed)
    if platform.machine() not in ("x86_64", "aarch64"):
        return _bad(reasons.KERNEL_FEATURE, "kernel", platform.machine(), "x86_64 or aarch64")
    return _good("kernel", f"{release}, {machine().cpu_model or platform.machine()}")


def _checkpoint_support(_home: Path) -> Checked:
    options = {
        "CONFIG_CHECKPOINT_RESTORE": "/proc/sys/kernel/ns_last_pid",
        "CONFIG_PROC_CHILDREN": f"/proc/self/task/{os.getpid()}/children",
        "CONFIG_PROC_PAGE_MONITOR": "/proc/self/pagemap",
        "CONFIG_NAMESPACES": "/proc/self/ns/pid",
        "CONFIG_CGROUPS": "/proc/self/cgroup",
    }
    missing = [option for option, path in options.items() if not Path(path).exists()]
    if missing:
        found = f"a kernel without {', '.join(missing)}"
        return _bad(reasons.KERNEL_FEATURE, "checkpoint support", found, "these options")
    return _good("checkpoint support", "in the kernel")


def _seccomp(_home: Path) -> Checked:
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split()
    except FileNotFoundError:
        actions = []
    if "errno" not in actions:
        return _bad(reasons.KERNEL_FEATURE, "seccomp", "no filters", "CONFIG_SECCOMP_FILTER")
    return _good("seccomp", "filters")


def _cgroups(_home: Path) -> Checked:
    mounted = cgroups.hierarchies(procfs.mountinfo("self"))
    cgroups.usable(mounted)
    return _good("cgroups", cgroups.mode(mounted))


def _criu(home: Path) -> Checked:
    bundle = criu_bundle.find(home)
    version = criu_version(bundle, home)
    if problem := bundle.check():
        return _bad(reasons.CRIU_UNUSABLE, "CRIU", problem, "criu check to be content")
    if "amx_tile" in machine().cpu_flags and not bundle.preload:
        finding = rules.no_preload()
        return "CRIU", False, finding.found, finding
    return _good("CRIU", f"{version} in {bundle.root}, content with this kernel")


def _sandbox(home: Path) -> Checked:
    """Make a real one and run a program in it: namespaces, overlay, network link, cgroups; or say what fails."""
    if os.geteuid() != 0:
        return _bad(reasons.NOT_ROOT, "sandbox", "not tried", "root")
    with _scratch(home) as scratch:
        spec = SandboxSpec(name=f"doctor-{secrets.token_hex(3)}", command=("/bin/true",), engine="none")
        try:
            sandbox = local.create(scratch, spec, placeholder=False)
            deadline = Deadline.after(_PROBE_SECONDS, "a sandbox to run /bin/true")
            while sandbox.exit_status() is None and sandbox.lives():
                deadline.check()
                time.sleep(deadline.sooner(0.01))
            status, address = sandbox.exit_status(), sandbox.address
        finally:
            with contextlib.suppress(HotstartError):
                local.destroy(scratch, spec.name, grace_s=0)
    if status != 0:
        found = f"a sandbox ran, but /bin/true ended with {status}"
        return _bad(reasons.SANDBOX_START, "sandbox", found, "status 0")
    return _good("sandbox", f"one was made, ran a program and was removed (address {address})")


@contextlib.contextmanager
def _scratch(home: Path) -> Iterator[Path]:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=".doctor-", dir=home))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _disk(home: Path) -> Checked:
    free = room(home)
    if free.noexec:
        found = f"{home} lies on a noexec mount: memory is copied from there, not mapped"
        return _mild(reasons.NOEXEC_STORE, "disk", found, "an exec mount")
    if free.disk_bytes < DISK_BYTES:
        return _mild(reasons.DISK_FULL, "disk", f"{size(free.disk_bytes)} free at {home}", f"about {size(DISK_BYTES)}")
    return _good("disk", f"{size(free.disk_bytes)} free at {home}")


def _memory(home: Path) -> Checked:
    free = room(home).memory_bytes
    if free < MEMORY_BYTES:
        return _mild(reasons.MEMORY_SHORT, "memory", f"{size(free)} available", f"about {size(MEMORY_BYTES)}")
    return _good("memory", f"{size(free)} available")


def _io_uring(_home: Path) -> Checked:
    """Copied memory is read through io_uring where there is one."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    parameters = ctypes.create_string_buffer(_IO_URING_PARAMS)
    ring = libc.syscall(ctypes.c_long(_IO_URING_SETUP), ctypes.c_uint(2), parameters)
    if ring < 0:
        found = f"{os.strerror(ctypes.get_errno())}: copied memory is read by threads"
        return _mild(reasons.KERNEL_FEATURE, "io_uring", found, "kernel.io_uring_disabled=0, no filter")
    os.close(ring)
    return _good("io_uring", "works")


def _bytecode(_home: Path) -> Checked:
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        found = "PYTHONDONTWRITEBYTECODE is set: cold starts compile every import"
        return _mild(reasons.BYTECODE_OFF, "bytecode", found, "unset")
    return _good("bytecode", "written")
