"""The manifest: everything that is known of a snapshot, written last, strict and versioned.

docs/formats/snapshot.md describes the directory and this file field by field.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from hotstart.errors import HotstartError
from hotstart.reasons import MANIFEST_INVALID, MANIFEST_VERSION

VERSION = 1
LIMIT = 64 << 20
"""No manifest is larger than this many bytes."""
MANIFEST_FILE = "manifest.json"
MEMORY_FILE = "memory"
TABLE_FILE = "memory.table"

T = TypeVar("T")


class VolumeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A bind mount of the source sandbox."""

    source: str
    target: str
    read_only: bool


class SandboxEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the source sandbox was made: what a placeholder and a cold start need."""

    command: list[str]
    env: dict[str, str]
    cwd: str
    uid: int
    gid: int
    groups: list[int]
    rootfs: str
    tmpfs: list[str]
    volumes: list[VolumeEntry]
    engine: str
    labels: dict[str, str]


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file of the snapshot directory."""

    path: str
    """Relative to the snapshot directory."""
    bytes: int
    """Logical size (a sparse file's holes count)."""
    digest: str
    """``sha256:<hex>`` of the content; for the memory file: of its block table, which carries the block digests."""


class FileIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file outside the snapshot that the worker has open or mapped: must be the same at a restore."""

    path: str
    bytes: int
    mtime_ns: int


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What preflight compares with the restoring machine."""

    kernel: str
    machine: str
    cpu_model: str
    cpu_flags: list[str]
    xsave_bytes: int
    criu: str
    cgroup: str
    """``v1``, ``v2`` or ``hybrid``."""
    libc: str
    page_size: int
    lsm: list[str]
    executable_memory: bool
    """True if a mapped range is executable (the memory file then needs an exec mount)."""
    files: list[FileIdentity]


class CanaryTokenEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One greedy token recorded at capture."""

    token_id: int
    logprob: float


class CanaryEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The prompt and the tokens that a restored worker must compute again."""

    prompt: str
    tokens: list[CanaryTokenEntry]


class EngineEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the engine plugin said of itself."""

    name: str
    """``vllm``, ``plain`` or ``none``."""
    facts: dict[str, float | int | str]
    canary: CanaryEntry | None = None


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one process's memory comes back, and why."""

    pid: int
    """In the sandbox's pid namespace."""
    name: str
    mode: str
    """``mapped`` or ``copied``: of the process; single ranges of a mapped process may be copied."""
    reason: str
    """Reason code when copied, else empty."""
    filters: int
    """Seccomp filters that each of its threads has after a restore: checked before it runs."""
    mapped_bytes: int
    copied_bytes: int
    kept_bytes: int
    """Left in CRIU's own images (stacks, dirty pages of library files)."""
    empty_bytes: int
    """Address space of anonymous ranges without content."""
    ranges: dict[str, int]
    """Number of copied ranges by reason code."""


class Sizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the bytes are."""

    memory_bytes: int
    """Non-zero data in the memory file."""
    zero_bytes: int
    """Pages that were all zero and are holes."""
    skeleton_bytes: int
    shared_bytes: int
    """Address space of shared segments that the memory file holds."""
    rootfs_bytes: int
    tmpfs_bytes: int
    stored_bytes: int
    """Disk blocks of the whole directory."""
    kv_bytes: int
    """KV cache content in the snapshot (0: released before the capture)."""
    kv_released_bytes: int


class TmpfsEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of one tmpfs."""

    target: str
    """Mount point in the sandbox."""
    path: str
    """Archive, relative to the snapshot directory."""


class PhaseEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One timed span of the capture."""

    name: str
    start_s: float
    end_s: float


class Timings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The capture's phases, the source's stop, and the cold start that a restore replaces."""

    total_s: float
    unaccounted_s: float
    frozen_s: float
    spans: list[PhaseEntry]
    cold_start_s: float
    """From the start of the command to ``ready``; 0 if unknown."""


class Stdio(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``pipe:[inode]`` names of the worker's stdin, stdout and stderr at capture."""

    names: list[str]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """See the module's docstring."""

    version: int
    hotstart: str
    name: str
    created: str
    """UTC, RFC 3339."""
    sandbox: SandboxEntry
    engine: EngineEntry
    facts: Facts
    verdicts: list[Verdict]
    sizes: Sizes
    timings: Timings
    stdio: Stdio
    tiles: bool
    """Whether a restored tree is given the permission to use AMX tile registers, as the source may have had it."""
    root_pid: int
    pids: list[int]
    """Every pid and thread id of the tree, in the sandbox's pid namespace."""
    tmpfs: list[TmpfsEntry]
    memory_ids: list[int]
    """File ids of CRIU's images that are the memory file: one per process."""
    files: list[FileEntry]


def encode(manifest: Manifest) -> bytes:
    """Readable JSON.  A name that is not UTF-8 stands in it as os.fsdecode makes it, its bytes as ``\\udcXX``."""
    try:
        return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    except UnicodeEncodeError:  # msgspec writes no lone surrogates; json does
        return json.dumps(msgspec.to_builtins(manifest), indent=1).encode() + b"\n"


def decode(data: bytes) -> Manifest:
    """Parse; raises ``manifest-invalid`` or ``manifest-version``.  ``rules.check`` looks beyond types."""
    try:
        version = _decode(data, _Version).version
        if version != VERSION:
            raise HotstartError(
                MANIFEST_VERSION, f"the manifest has version {version}, this Hotstart reads version {VERSION}"
            )
        return _decode(data, Manifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise HotstartError(MANIFEST_INVALID, f"the manifest is not valid: {error}") from None


class _Version(msgspec.Struct):
    version: int


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        if "surrogate" not in str(error):
            raise
    return msgspec.convert(json.loads(data, parse_constant=_refuse), type=kind)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
