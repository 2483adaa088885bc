"""Values as the API returns them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TypeVar, cast, get_origin

import msgspec

from hotstart.snapshot_agent import api
from hotstart.snapshot_agent.catalog import manifest as m

SECRET = "hunter2-never-printed"

Struct = TypeVar("Struct")


def filled(struct: type[Struct], **values: Any) -> Struct:
    """A struct of the manifest; members that do not matter here are empty."""
    for member in msgspec.structs.fields(cast(Any, struct)):
        if member.name not in values and member.required:
            kind = get_origin(member.type) or member.type
            values[member.name] = kind()
    return struct(**values)


def sandbox(name: str = "chat", **changes: Any) -> api.SandboxInfo:
    """A sandbox as ``ps`` gets it."""
    info = api.SandboxInfo(
        name=name,
        state="ready",
        address="10.231.0.2",
        init_pid=4711,
        created="2026-01-02T03:04:05Z",
        command=("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/chat"),
        engine="vllm",
        private_bytes=52_428_800,
    )
    return dataclasses.replace(info, **changes)


def verdict(pid: int, name: str, **changes: Any) -> m.Verdict:
    """How one process's memory comes back."""
    values: dict[str, Any] = {
        "pid": pid,
        "name": name,
        "mode": "mapped",
        "reason": "",
        "mapped_bytes": 700 << 20,
        "copied_bytes": 0,
        "kept_bytes": 3 << 20,
        "empty_bytes": 4 << 30,
        "ranges": {},
        "filters": 1,
    }
    return filled(m.Verdict, **{**values, **changes})


def snapshot(name: str = "chat", **changes: Any) -> api.SnapshotInfo:
    """A snapshot; ``changes`` replace members of its manifest."""
    spans = [
        ("preflight", 0.01, 0.06),
        ("quiesce", 0.06, 0.32),
        ("frozen", 0.325, 0.98),
        ("criu dump", 0.34, 0.75),
        ("memory file", 0.35, 0.93),
        ("rootfs", 0.74, 0.83),
        ("tmpfs", 0.74, 0.8),
        ("resume", 0.98, 1.09),
        ("checksums", 1.0, 1.5),
        ("publish", 1.51, 1.6),
    ]
    values: dict[str, Any] = {
        "version": 1,
        "hotstart": "0.1.0",
        "name": name,
        "created": "2026-01-02T03:04:05Z",
        "sandbox": filled(
            m.SandboxEntry,
            command=["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/chat"],
            env={"HF_TOKEN": SECRET, "PATH": "/usr/bin"},
            cwd="/srv",
            uid=1000,
            gid=1000,
            groups=[],
            rootfs="/",
            tmpfs=["/tmp"],
            volumes=[filled(m.VolumeEntry, source="/models", target="/models", read_only=True)],
            engine="auto",
            labels={"team": "chat"},
        ),
        "engine": filled(
            m.EngineEntry,
            name="vllm",
            facts={"model": "/models/chat", "drain_s": 0.0312, "kv_bytes": 8 << 20, "processes": 2},
            canary=filled(
                m.CanaryEntry,
                prompt="The capital of France is",
                tokens=[filled(m.CanaryTokenEntry, token_id=7, logprob=-1.0)],
            ),
        ),
        "facts": filled(
            m.Facts,
            kernel="6.1.0",
            machine="x86_64",
            cpu_model="Xeon",
            cpu_flags=["avx2", "amx"],
            xsave_bytes=10752,
            criu="4.2.1",
            cgroup="v2",
            libc="glibc 2.36",
            page_size=4096,
            lsm=["landlock"],
            executable_memory=False,
            files=[filled(m.FileIdentity, path="/usr/bin/python3", bytes=1, mtime_ns=1)],
        ),
        "verdicts": [
            verdict(100, "launcher", mapped_bytes=5 << 20),
            verdict(101, "python"),
            verdict(140, "VLLM::EngineCore", ranges={"copied-wipe-on-fork": 2}, copied_bytes=8192),
        ],
        "sizes": filled(
            m.Sizes,
            memory_bytes=1_400_000_000,
            zero_bytes=300_000_000,
            skeleton_bytes=4_000_000,
            rootfs_bytes=1_000_000,
            tmpfs_bytes=200_000,
            stored_bytes=1_410_000_000,
            kv_bytes=0,
            kv_released_bytes=4 << 30,
        ),
        "timings": filled(
            m.Timings,
            total_s=1.62,
            unaccounted_s=0.035,
            frozen_s=0.655,
            cold_start_s=31.2,
            spans=[filled(m.PhaseEntry, name=n, start_s=a, end_s=b) for n, a, b in spans],
        ),
        "tmpfs": [filled(m.TmpfsEntry, target="/tmp", path="tmpfs-0.tar")],
        "stdio": filled(m.Stdio, names=["pipe:[1]", "pipe:[2]", "pipe:[3]"]),
        "root_pid": 100,
        "pids": [100, 101, 140],
        "memory_ids": [7, 8, 9],
        "files": [filled(m.FileEntry, path="memory", bytes=1, digest="sha256:00")],
    }
    path = Path("/var/lib/hotstart/snapshots") / name
    return api.SnapshotInfo(name=name, path=path, manifest=filled(m.Manifest, **{**values, **changes}))


def copy(name: str = "chat-k3fq", **changes: Any) -> api.RestoreResult:
    """One restored copy."""
    spans = [("placeholder", 0.004, 0.055), ("criu restore", 0.06, 0.17), ("resume", 0.175, 0.29)]
    result = api.RestoreResult(
        name=name,
        outcome="restored",
        address="10.231.0.6",
        phases={
            "total_s": 0.312,
            "unaccounted_s": 0.036,
            "spans": [{"name": n, "start_s": a, "end_s": b} for n, a, b in spans],
        },
        verdicts=[
            {"pid": 101, "name": "python", "mode": "mapped", "reason": "", "ranges": {}},
            {"pid": 140, "name": "VLLM::EngineCore", "mode": "mapped", "reason": "", "ranges": {}},
        ],
    )
    return dataclasses.replace(result, **changes)
