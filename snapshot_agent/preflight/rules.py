"""What makes a capture or a restore impossible, or unwise (pure): facts in, findings out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hotstart import reasons
from hotstart.findings import Finding
from hotstart.snapshot_agent.catalog.manifest import MEMORY_FILE, Facts, FileIdentity, Sizes, Verdict
from hotstart.snapshot_agent.units import size

if TYPE_CHECKING:  # a restore judges without them: imports are on its critical path
    from hotstart.snapshot_agent.preflight.machine import Room
    from hotstart.snapshot_agent.preflight.worker import Content, Named, Worker

MARGIN = 64 << 20
"""Bytes of disk that stay free beside what is counted: CRIU's other images, tables, other programs."""
OWN_MEMORY = 128 << 20
"""Bytes that one copy writes until its first token (34 to 70 MiB measured), and its helper processes."""
SHOWN = 5
"""Files that one finding names."""

INSTRUCTION_SETS = re.compile(
    r"""(avx|amx|sse|ssse|bmi|fma|xsave|sha|aes|vaes|gfni|vpclmulqdq|pclmulqdq|adx|abm|f16c|mmx|xop|tbm|lwp)\w*
    | movbe | movdiri | movdir64b | popcnt | rdrand | rdseed | rdpid | rdtscp | cx8 | cx16 | cmov | lahf_lm | lm
    | clflush | clflushopt | clwb | clzero | cldemote | serialize | waitpkg | fsgsbase | rtm | hle | ospke | pku
    | user_shstk | 3dnow | 3dnowext | 3dnowprefetch | misalignsse | pni | fxsr | prefetchw | erms | fsrm | xgetbv1""",
    re.VERBOSE,
)
"""x86 flags that a program can have chosen its code by.  The others (mitigations, virtualization, what the kernel
itself uses) differ between kernels on one and the same CPU."""


def compare(snapshot: Facts, here: Facts) -> list[Finding]:
    """What of a snapshot's facts this machine does not have; ``here.files`` are the same paths as found here."""
    return [
        *_cpu(snapshot, here),
        *_kernel(snapshot, here),
        *_criu(snapshot, here),
        *_files(snapshot.files, here.files),
    ]


def _cpu(snapshot: Facts, here: Facts) -> Iterable[Finding]:
    if snapshot.machine != here.machine or snapshot.page_size != here.page_size:
        found = f"{here.machine}, {here.page_size}-byte pages"
        needed = f"{snapshot.machine}, {snapshot.page_size}-byte pages"
        yield Finding(reasons.INCOMPATIBLE_CPU, "machine", found, needed)
        return
    is_x86 = here.machine == "x86_64"
    needed_flags = {flag for flag in snapshot.cpu_flags if not is_x86 or INSTRUCTION_SETS.fullmatch(flag)}
    if missing := sorted(needed_flags - set(here.cpu_flags)):
        yield Finding(
            reasons.INCOMPATIBLE_CPU,
            "cpu",
            f"{here.cpu_model or 'a CPU'} without {' '.join(missing)}",
            f"the features of {snapshot.cpu_model or 'the capturing CPU'}",
        )
    if 0 < here.xsave_bytes < snapshot.xsave_bytes:
        found, needed = f"{here.xsave_bytes} bytes", f"at least {snapshot.xsave_bytes} bytes"
        yield Finding(reasons.INCOMPATIBLE_CPU, "extended register state", found, needed)


def _kernel(snapshot: Facts, here: Facts) -> Iterable[Finding]:
    if _numbers(snapshot.kernel)[:1] != _numbers(here.kernel)[:1]:
        yield Finding(reasons.INCOMPATIBLE_KERNEL, "kernel", here.kernel, f"the series of {snapshot.kernel}")
    elif _numbers(here.kernel)[:2] < _numbers(snapshot.kernel)[:2]:
        needed = f"{snapshot.kernel} or newer"
        yield Finding(reasons.INCOMPATIBLE_KERNEL, "kernel", here.kernel, needed, fatal=False)


def _criu(snapshot: Facts, here: Facts) -> Iterable[Finding]:
    if here.criu and _numbers(here.criu)[:2] < _numbers(snapshot.criu)[:2]:
        needed = f"{snapshot.criu} or newer, which wrote the images"
        yield Finding(reasons.CRIU_UNUSABLE, "CRIU", here.criu, needed, "run ./dev setup, or point HOTSTART_CRIU at it")


def _files(then: Sequence[FileIdentity], now: Sequence[FileIdentity]) -> Iterable[Finding]:
    by_path = {file.path: file for file in now}
    missing = [file.path for file in then if file.path not in by_path]
    changed = [file.path for file in then if file.path in by_path and by_path[file.path] != file]
    if missing:
        yield Finding(reasons.INCOMPATIBLE_ROOTFS, "files", f"missing: {_some(missing)}", "the files at capture")
    if changed:
        needed = "the size and the time that they had at capture"
        yield Finding(reasons.INCOMPATIBLE_ROOTFS, "files", f"changed: {_some(changed)}", needed)


def capture_findings(worker: Worker) -> list[Finding]:
    """What of a live sandbox CRIU would lose (``audit.judge`` has the rest)."""
    findings = [
        Finding(reasons.STRAY_PROCESS, subject(stray), "not in the worker's tree", "only the worker in its sandbox")
        for stray in worker.strays
    ]
    for process, kind in worker.odd_threads:
        found = f"a thread in a {kind} namespace of its own"
        findings.append(Finding(reasons.FOREIGN_NAMESPACE, subject(process), found, "the sandbox's own"))
    if worker.ipc_objects:
        findings.append(Finding(reasons.SYSV_IPC, "sandbox", _some(worker.ipc_objects), "none"))
    return findings


def restored(mapped: Iterable[str], store: str) -> list[Finding]:
    """A finding if one of the mapped files is the memory file of a snapshot in ``store`` (a resolved path)."""
    home = store.rstrip("/") + "/"
    memory = sorted(path for path in mapped if path.startswith(home) and path.endswith(f"/{MEMORY_FILE}"))
    return [Finding(reasons.RESTORED_WORKER, "sandbox", f"memory of {memory[0]}", "a cold start")] if memory else []


def no_preload() -> Finding:
    """CRIU alone does not carry the permission for AMX tile registers (criu/preload.c)."""
    found = "a CRIU tree without hotstart-preload.so: workers that use AMX would die after a restore"
    return Finding(reasons.CRIU_UNUSABLE, "CRIU", found, "a tree that ./dev setup has made", "run ./dev setup")


def capture_need(content: Content, kv_bytes: int) -> int:
    """Bytes of disk that a capture may take at its worst moment (pure).

    Everything but the KV cache, which is released before; and one process's pages twice, while they move from CRIU's
    images to the memory file.
    """
    memory = max(0, content.memory - kv_bytes)
    return memory + min(memory, content.largest) + content.tmpfs + content.upper + MARGIN


def capture_room(content: Content, kv_bytes: int, room: Room) -> list[Finding]:
    """Whether the place of the snapshots can take the capture, and can be mapped from (else all is copied)."""
    findings = []
    need = capture_need(content, kv_bytes)
    if need > room.disk_bytes:
        findings.append(Finding(reasons.DISK_FULL, "snapshots", f"{size(room.disk_bytes)} free", size(need)))
    if room.noexec:
        needed = "an exec mount, or all memory is copied instead of mapped"
        findings.append(Finding(reasons.NOEXEC_STORE, "snapshots", "a noexec mount", needed, fatal=False))
    return findings


def restore_room(sizes: Sizes, verdicts: Sequence[Verdict], room: Room, *, copies: int) -> list[Finding]:
    """Whether ``copies`` of a snapshot find room here.

    The memory file itself needs none: it is page cache, which gives way.  What every copy has of its own is what is
    copied instead of mapped, CRIU's part, shared memory, tmpfs contents and the KV cache that it makes anew.
    """
    findings = []
    own = sum(verdict.copied_bytes + verdict.kept_bytes for verdict in verdicts)
    own += sizes.tmpfs_bytes + min(sizes.shared_bytes, sizes.memory_bytes) + sizes.kv_released_bytes + OWN_MEMORY
    if own * copies > room.memory_bytes:
        found, needed = f"{size(room.memory_bytes)} available", f"{size(own)} a copy, {copies} copies"
        findings.append(Finding(reasons.MEMORY_SHORT, "memory", found, needed))
    elif own * copies + sizes.memory_bytes > room.memory_bytes:
        found = f"{size(room.memory_bytes)} available"
        needed = f"{size(own * copies + sizes.memory_bytes)} to keep the memory file cached; slower without"
        findings.append(Finding(reasons.MEMORY_SHORT, "memory", found, needed, fatal=False))
    need = sizes.rootfs_bytes * copies + MARGIN
    if need > room.disk_bytes:
        findings.append(Finding(reasons.DISK_FULL, "sandboxes", f"{size(room.disk_bytes)} free", size(need)))
    if room.noexec and any(verdict.mode == "mapped" for verdict in verdicts):
        # A range that is executable fails the restore; a JIT that asks later gets EACCES in the middle of its work.
        needed = "an exec mount, as at the capture"
        findings.append(Finding(reasons.NOEXEC_STORE, "snapshots", "a noexec mount", needed))
    return findings


def missing_volumes(sources: Iterable[str]) -> list[Finding]:
    """A finding for each volume of the source sandbox that is not there."""
    return [
        Finding(reasons.MISSING_MOUNT, source, "not there", "the volume of the source sandbox") for source in sources
    ]


def subject(process: Named) -> str:
    """How a finding names a process."""
    return f"pid {process.inner_pid} ({process.name})"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("-")[0]))


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest
