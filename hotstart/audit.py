"""What forbids the capture of a process tree: facts read from /proc, and pure rules that turn them into findings.

The same rules run in two places: the agent judges the tree from outside before it disturbs the worker, and the worker
judges itself before it says that it is at rest (``at_rest``: then not even a client may be connected).
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hotstart import reasons
from hotstart.findings import Finding
from hotstart.linux import procfs
from hotstart.linux.procfs import Mount
from hotstart.reasons import Reason

NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
"""Not time: CRIU restores a tree into a time namespace of its own, in which its clocks go on."""
GHOST_LIMIT = 64 << 20
"""Deleted files up to this many bytes are carried in the images (CRIU's --ghost-limit)."""
DESCRIPTOR_LIMIT = 1 << 16
"""At most this many descriptors of one process are looked at; more are a finding."""

DUMPABLE_ANON_INODES = frozenset(
    {"[eventpoll]", "[eventfd]", "[signalfd]", "[timerfd]", "inotify", "[fanotify]", "[pidfd]"}
)
HARMLESS_DEVICES = frozenset({(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)})
"""null, zero, full, random, urandom, tty, ptmx."""
PTS_MAJORS = range(136, 144)
GPU_PATHS = ("/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/gdrdrv")
ROTATING_CACHES = ("/huggingface/xet/", "/.cache/huggingface/hub/.locks/")
MEMORY_PATHS = ("/memfd:", "/SYSV", "/dev/zero (deleted)", "/anon_hugepage", "/secretmem")
"""What the kernel calls files that live in no mount that anyone sees."""

TCP_ESTABLISHED, TCP_TIME_WAIT, TCP_CLOSE, TCP_LISTEN = 1, 6, 7, 10


@dataclass(frozen=True)
class Descriptor:
    """One open descriptor."""

    number: int
    target: str
    """What /proc/PID/fd/N points to: a path, ``socket:[N]``, ``anon_inode:[…]``."""
    device: tuple[int, int] | None = None
    """Major and minor of a character or block device node."""
    file_system: str | None = ""
    """Type of the file system of its mount; None if its process cannot reach that mount; "" if it is no file."""
    deleted_bytes: int = 0
    """Size, if it is a regular file without a name."""
    watched: frozenset[str] = frozenset()
    """inotify, fanotify: types of the watched file systems."""
    pidfd_of: int | None = None
    """pidfd: pid of its process as the process that holds it sees it; -1 if that has ended."""
    semaphore: bool = False
    """eventfd: counts down by one (EFD_SEMAPHORE)."""


@dataclass(frozen=True)
class Process:
    """One process of the tree."""

    pid: int
    comm: str
    tracer: int = 0
    bits: int = 64
    namespaces: Mapping[str, str] = field(default_factory=dict)
    descriptors: tuple[Descriptor, ...] = ()
    hidden: bool = False
    """Its descriptors may not be read by the one who asked."""
    too_many: bool = False
    """It has more descriptors than DESCRIPTOR_LIMIT; the rest was not looked at."""
    inner_pid: int = 0
    """Its pid in its own pid namespace."""

    @property
    def subject(self) -> str:
        """For findings."""
        return f"pid {self.pid} ({self.comm})"


@dataclass(frozen=True)
class Endpoint:
    """An internet socket that a process of the tree holds."""

    protocol: str
    """tcp or udp"""
    network: str
    """Its network namespace."""
    local: tuple[str, int]
    remote: tuple[str, int]
    state: int
    inode: int


@dataclass(frozen=True)
class Facts:
    """All that the rules look at."""

    processes: tuple[Process, ...]
    endpoints: tuple[Endpoint, ...] = ()
    namespaces: Mapping[str, str] = field(default_factory=dict)
    """The namespaces that all processes should be in."""
    in_user_namespace: bool = False
    sysv_objects: int | None = None
    """System V objects of the tree's ipc namespace; None if it is not the caller's own."""


# --- rules (pure) ---------------------------------------------------------------------------------------------------


def judge(facts: Facts, *, at_rest: bool = False) -> list[Finding]:
    """All findings, in the order of the rules; nothing found means nothing known speaks against a capture."""
    findings = [*_sandbox_findings(facts), *_endpoint_findings(facts, at_rest)]
    inner_pids = {process.inner_pid for process in facts.processes}
    for process in facts.processes:
        findings += _process_findings(process, facts.namespaces)
        for descriptor in process.descriptors:
            if found := _descriptor_finding(descriptor, inner_pids):
                reason, text, needed = found
                findings.append(Finding(reason, process.subject, f"descriptor {descriptor.number} is {text}", needed))
    return findings


def _sandbox_findings(facts: Facts) -> Iterable[Finding]:
    if facts.in_user_namespace:
        yield Finding(reasons.USER_NAMESPACE, "sandbox", "a user namespace", "the initial user namespace")
    if facts.sysv_objects:
        yield Finding(reasons.SYSV_IPC, "sandbox", f"{facts.sysv_objects} System V objects", "none")


def _process_findings(process: Process, expected: Mapping[str, str]) -> Iterable[Finding]:
    if process.tracer:
        yield Finding(reasons.TRACED, process.subject, f"traced by pid {process.tracer}", "no tracer")
    if process.bits != 64:
        yield Finding(reasons.BIT32, process.subject, f"a {process.bits}-bit program", "a 64-bit program")
    if process.hidden:
        yield Finding(reasons.HIDDEN_PROCESS, process.subject, "its descriptors are hidden", "to see them", fatal=False)
    if process.too_many:
        few = f"at most {DESCRIPTOR_LIMIT}"
        yield Finding(reasons.UNDUMPABLE_FD, process.subject, "too many descriptors", few)
    for kind, name in process.namespaces.items():
        if kind in expected and name != expected[kind]:
            reason = reasons.USER_NAMESPACE if kind == "user" else reasons.FOREIGN_NAMESPACE
            yield Finding(reason, process.subject, f"a {kind} namespace of its own", "the sandbox's own")


def _descriptor_finding(descriptor: Descriptor, inner_pids: set[int]) -> tuple[Reason, str, str] | None:
    target = descriptor.target
    if target.startswith("anon_inode:"):
        return _anon_inode_finding(descriptor, target.removeprefix("anon_inode:"), inner_pids)
    if target.startswith("pidfd:"):
        return _anon_inode_finding(descriptor, "[pidfd]", inner_pids)
    if descriptor.device and not _is_harmless(descriptor.device):
        reason = reasons.GPU_WORKER if target.startswith(GPU_PATHS) else reasons.DEVICE_OPEN
        return reason, f"{target} (device {descriptor.device[0]}:{descriptor.device[1]})", "no device but null, tty…"
    if not target.startswith("/"):
        return None
    if target.startswith("/secretmem"):
        return reasons.UNDUMPABLE_FD, "secret memory", "ordinary memory"
    if descriptor.file_system == "mqueue":
        return reasons.SYSV_IPC, f"the POSIX message queue {target}", "none"
    if any(part in target for part in ROTATING_CACHES):
        return reasons.ROTATING_CACHE, target, "no open file there"
    if descriptor.file_system is None and not target.startswith(MEMORY_PATHS):
        return reasons.OUTSIDE_FILE, f"{target} on a mount that it cannot reach", "files of its own mount namespace"
    if descriptor.deleted_bytes > GHOST_LIMIT and not target.startswith(MEMORY_PATHS):
        return reasons.UNDUMPABLE_FD, f"a deleted file of {descriptor.deleted_bytes} bytes", f"at most {GHOST_LIMIT}"
    return None


def _anon_inode_finding(descriptor: Descriptor, kind: str, inner_pids: set[int]) -> tuple[Reason, str, str] | None:
    if kind == "[io_uring]":
        return reasons.IO_URING, "an io_uring", "none"
    if kind not in DUMPABLE_ANON_INODES:
        return reasons.UNDUMPABLE_FD, kind, "descriptors that CRIU can dump"
    if descriptor.semaphore:  # CRIU would make an ordinary eventfd of it, without a word
        return reasons.UNDUMPABLE_FD, "an eventfd that is a semaphore", "an ordinary eventfd"
    if "overlay" in descriptor.watched:
        return reasons.INOTIFY_OVERLAY, f"{kind} with a watch on overlayfs", "no watch there"
    if kind == "[pidfd]" and descriptor.pidfd_of is not None and descriptor.pidfd_of not in inner_pids | {-1}:
        return reasons.UNDUMPABLE_FD, f"a pidfd of process {descriptor.pidfd_of}, which stays outside", "the tree's own"
    return None


def _is_harmless(device: tuple[int, int]) -> bool:
    return device in HARMLESS_DEVICES or device[0] in PTS_MAJORS


def _endpoint_findings(facts: Facts, at_rest: bool) -> Iterable[Finding]:
    holder = {descriptor.target: process.subject for process in facts.processes for descriptor in process.descriptors}
    known = {(e.network, e.protocol, e.local, e.remote) for e in facts.endpoints}
    listening = {(e.network, e.local[1]) for e in facts.endpoints if e.protocol == "tcp" and e.state == TCP_LISTEN}
    for end in facts.endpoints:
        subject = holder.get(f"socket:[{end.inode}]", "sandbox")
        if end.protocol == "udp":
            if not _travels(end.local[0]):
                yield Finding(reasons.OUTSIDE_UDP, subject, f"UDP socket at {_text(end.local)}", "0.0.0.0 or loopback")
        elif end.state == TCP_LISTEN:
            if not _travels(end.local[0]):
                yield Finding(reasons.BOUND_ADDRESS, subject, f"listens at {_text(end.local)}", "0.0.0.0 or loopback")
        elif end.state not in (TCP_CLOSE, TCP_TIME_WAIT):
            if (end.network, end.protocol, end.remote, end.local) in known:
                continue
            what = f"{_text(end.local)} to {_text(end.remote)}"
            if (end.network, end.local[1]) in listening:
                yield Finding(reasons.INCOMING_TCP, subject, what, "none while at rest", fatal=at_rest)
            else:
                yield Finding(reasons.OUTSIDE_TCP, subject, what, "no peer outside")


def _travels(address: str) -> bool:
    """True if a copy, which has another address, can bind this one."""
    return address in ("0.0.0.0", "::", "::1") or address.startswith("127.")  # noqa: S104


def _text(end: tuple[str, int]) -> str:
    return f"[{end[0]}]:{end[1]}" if ":" in end[0] else f"{end[0]}:{end[1]}"


# --- facts ----------------------------------------------------------------------------------------------------------


def audit_self(pids: Sequence[int]) -> list[Finding]:
    """The worker's own judgement at rest; ``pids`` are its processes, the caller's among them."""
    return judge(gather(pids, reference=os.getpid()), at_rest=True)


def tree(root: int) -> list[int]:
    """``root`` and all its descendants, as the caller's /proc shows them."""
    children: dict[int, list[int]] = {}
    for pid in procfs.pids():
        with contextlib.suppress(OSError):
            children.setdefault(procfs.stat(pid).parent, []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def gather(pids: Sequence[int], *, reference: int) -> Facts:
    """Read the facts of ``pids``, all of them pids of the caller's /proc.

    ``reference`` is the process whose namespaces all should share (the sandbox's supervisor, or the worker itself).
    A process that ends meanwhile is left out.
    """
    processes = []
    endpoints: dict[str, list[Endpoint]] = {}
    for pid in pids:
        try:
            process = _process(pid)
            network = process.namespaces.get("net", "")
            if network not in endpoints:
                endpoints[network] = list(_endpoints(pid, network))
        except (FileNotFoundError, ProcessLookupError):
            continue
        processes.append(process)
    held = {descriptor.target for process in processes for descriptor in process.descriptors}
    own = [e for ends in endpoints.values() for e in ends if f"socket:[{e.inode}]" in held]
    namespaces = _namespaces(reference)
    return Facts(
        tuple(processes),
        tuple(own),
        namespaces,
        procfs.read(reference, "uid_map").split() != [b"0", b"0", b"4294967295"],
        _sysv_objects() if namespaces.get("ipc") == _namespaces(os.getpid()).get("ipc") else None,
    )


def _process(pid: int) -> Process:
    status = procfs.status(pid)
    try:
        namespaces = _namespaces(pid)
        numbers = sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
        mounts = {mount.mount_id: mount for mount in procfs.mountinfo(pid)}
    except PermissionError:
        return Process(pid, status.name, status.tracer, hidden=True, inner_pid=status.ns_pids[-1])
    return Process(
        pid,
        status.name,
        status.tracer,
        _bits(pid),
        namespaces,
        tuple(_descriptors(pid, numbers[:DESCRIPTOR_LIMIT], mounts)),
        too_many=len(numbers) > DESCRIPTOR_LIMIT,
        inner_pid=status.ns_pids[-1],
    )


def _namespaces(pid: int) -> dict[str, str]:
    return {kind: procfs.namespace(pid, kind) for kind in NAMESPACES}


def _bits(pid: int) -> int:
    try:
        fd = os.open(f"/proc/{pid}/exe", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a kernel thread, a zombie, or hidden
        return 64
    try:
        header = os.read(fd, 5)
    finally:
        os.close(fd)
    return 32 if header == b"\x7fELF\x01" else 64


def _descriptors(pid: int, numbers: Iterable[int], mounts: Mapping[int, Mount]) -> Iterable[Descriptor]:
    for number in numbers:
        try:
            yield _descriptor(pid, number, mounts)
        except OSError:  # closed meanwhile
            continue


def _descriptor(pid: int, number: int, mounts: Mapping[int, Mount]) -> Descriptor:
    link = f"/proc/{pid}/fd/{number}"
    target = os.readlink(link)
    if target.startswith(("socket:", "pipe:")):
        return Descriptor(number, target)
    info = procfs.read(pid, f"fdinfo/{number}").decode(errors="replace").splitlines()
    if not target.startswith("/"):
        devices = {mount.device: mount.fstype for mount in mounts.values()}
        watched = frozenset(kind for line in info if (kind := _watched(line, devices, mounts)))
        pidfd_of = next((int(line.split()[1]) for line in info if line.startswith("Pid:")), None)
        semaphore = any(line.split() == ["eventfd-semaphore:", "1"] for line in info)
        return Descriptor(number, target, watched=watched, pidfd_of=pidfd_of, semaphore=semaphore)
    known = os.stat(link)
    device = None
    if stat.S_ISCHR(known.st_mode) or stat.S_ISBLK(known.st_mode):
        device = (os.major(known.st_rdev), os.minor(known.st_rdev))
    mount_id = next((int(line.split()[1]) for line in info if line.startswith("mnt_id:")), 0)
    mount = mounts.get(mount_id)
    nameless = stat.S_ISREG(known.st_mode) and known.st_nlink == 0
    return Descriptor(number, target, device, mount.fstype if mount else None, known.st_size if nameless else 0)


def _watched(line: str, devices: Mapping[str, str], mounts: Mapping[int, Mount]) -> str:
    """Type of the file system that one line of an inotify's or fanotify's fdinfo speaks of, or ""."""
    if not line.startswith(("inotify ", "fanotify ")):
        return ""
    values = dict(word.split(":", 1) for word in line.split() if ":" in word)
    if "sdev" in values:
        # The kernel prints its own dev_t: the minor number in the low 20 bits.
        raw = int(values["sdev"], 16)
        return devices.get(f"{raw >> 20}:{raw & 0xFFFFF}", "")
    if "mnt_id" in values:
        mount = mounts.get(int(values["mnt_id"], 16))
        return mount.fstype if mount else ""
    return ""


def _endpoints(pid: int, network: str) -> Iterable[Endpoint]:
    for protocol in ("tcp", "udp"):
        for table in (protocol, f"{protocol}6"):
            try:
                lines = procfs.read(pid, f"net/{table}").splitlines()[1:]
            except FileNotFoundError:  # a kernel without IPv6
                continue
            for line in lines:
                fields = line.split()
                local, remote = _address(fields[1].decode()), _address(fields[2].decode())
                yield Endpoint(protocol, network, local, remote, int(fields[3], 16), int(fields[9]))


def _address(text: str) -> tuple[str, int]:
    """``0100007F:1F40`` as ("127.0.0.1", 8000): words of the machine's byte order; IPv4 in IPv6 becomes IPv4."""
    words, port = text.split(":")
    raw = b"".join(int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8))
    if len(raw) == 16 and raw.startswith(b"\0" * 10 + b"\xff\xff"):
        raw = raw[12:]
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw), int(port, 16)


def _sysv_objects() -> int | None:
    try:
        return sum(len(procfs.read("sysvipc", kind).splitlines()) - 1 for kind in ("shm", "sem", "msg"))
    except FileNotFoundError:  # a kernel without System V IPC
        return None
