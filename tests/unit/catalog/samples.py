"""A small snapshot to test with: files in a staging directory, and the manifest that describes them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from hotstart.snapshot_agent.catalog import manifest as m

FILES = {
    "memory.table": b"table",
    "memory": b"\0" * 8192 + b"data",
    "rootfs.tar": b"",
    "skeleton/inventory.img": b"i" * 100,
    "skeleton/core-100.img": b"c" * 5000,
    "tmpfs-0.tar": b"t" * 1024,
}


def fill(directory: Path, files: dict[str, bytes] | None = None) -> None:
    """Write the files as a capture would, with whatever modes the umask gives."""
    for name, content in (FILES if files is None else files).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def entries(files: dict[str, bytes] | None = None) -> list[m.FileEntry]:
    """The files as the manifest lists them."""
    content = dict(FILES if files is None else files)
    digests = {name: f"sha256:{hashlib.sha256(data).hexdigest()}" for name, data in content.items()}
    digests["memory"] = digests["memory.table"]
    return [m.FileEntry(path=name, bytes=len(data), digest=digests[name]) for name, data in content.items()]


def manifest(name: str = "chat", **changes: Any) -> m.Manifest:
    """A sound manifest; ``changes`` replace its members."""
    values: dict[str, Any] = {
        "version": m.VERSION,
        "hotstart": "0.1.0",
        "name": name,
        "created": "2026-01-02T03:04:05Z",
        "sandbox": m.SandboxEntry(
            command=["python", "-m", "vllm"],
            env={"PATH": "/usr/bin"},
            cwd="/",
            uid=0,
            gid=0,
            groups=[],
            rootfs="/",
            tmpfs=["/tmp"],
            volumes=[m.VolumeEntry(source="/models", target="/models", read_only=True)],
            engine="auto",
            labels={},
        ),
        "engine": m.EngineEntry(
            name="vllm",
            facts={"version": "0.32.0", "kv_bytes": 0, "load": 0.5},
            canary=m.CanaryEntry(prompt="Hi", tokens=[m.CanaryTokenEntry(token_id=7, logprob=-1.25)]),
        ),
        "facts": m.Facts(
            kernel="6.1.0",
            machine="x86_64",
            cpu_model="Xeon",
            cpu_flags=["avx2"],
            xsave_bytes=10752,
            criu="4.2.1",
            cgroup="v2",
            libc="glibc 2.36",
            page_size=4096,
            lsm=[],
            executable_memory=False,
            files=[m.FileIdentity(path="/usr/bin/python3", bytes=1, mtime_ns=1)],
        ),
        "verdicts": [verdict(100), verdict(101, mode="copied", reason="copied-by-choice")],
        "sizes": m.Sizes(**dict.fromkeys(m.Sizes.__struct_fields__, 1)),
        "timings": m.Timings(
            total_s=2.0,
            unaccounted_s=0.1,
            frozen_s=0.5,
            spans=[m.PhaseEntry(name="dump", start_s=0.1, end_s=0.6)],
            cold_start_s=30.0,
        ),
        "stdio": m.Stdio(names=["pipe:[1]", "pipe:[2]", "pipe:[3]"]),
        "tiles": False,
        "root_pid": 100,
        "pids": [100, 101, 102],
        "tmpfs": [m.TmpfsEntry(target="/dev/shm", path="tmpfs-0.tar")],
        "memory_ids": [1000, 1001],
        "files": entries(),
    }
    return m.Manifest(**{**values, **changes})


def verdict(pid: int, **changes: Any) -> m.Verdict:
    """A process that is mapped."""
    values: dict[str, Any] = {
        "pid": pid,
        "name": "python",
        "mode": "mapped",
        "reason": "",
        "filters": 1,
        "mapped_bytes": 4096,
        "copied_bytes": 0,
        "kept_bytes": 4096,
        "empty_bytes": 0,
        "ranges": {},
    }
    return m.Verdict(**{**values, **changes})


def replaced(struct: Any, **changes: Any) -> Any:
    """A copy of a part of a manifest with other members."""
    return msgspec.structs.replace(struct, **changes)
