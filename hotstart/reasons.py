"""The registry of reason codes: what can go wrong, with which exit code, and what to do about it.

A code is stable: it appears in errors, exit codes, reports, metrics and docs/reasons.md (generated from here), and is
never reused for something else.
"""

from __future__ import annotations


class Reason:
    """One way an operation ends badly (or is refused).

    Not a dataclass: importing ``dataclasses`` costs 14 ms, and small helper processes that only raise errors pay it.
    """

    __slots__ = ("code", "exit_code", "meaning", "remedy")

    def __init__(self, code: str, exit_code: int, meaning: str, remedy: str) -> None:
        self.code = code
        self.exit_code = exit_code
        self.meaning = meaning
        self.remedy = remedy

    def __repr__(self) -> str:
        return f"Reason({self.code!r})"


REGISTRY: dict[str, Reason] = {}


def _reason(code: str, exit_code: int, meaning: str, remedy: str) -> Reason:
    if code in REGISTRY:
        raise ValueError(f"reason code {code} is registered twice")
    REGISTRY[code] = Reason(code, exit_code, meaning, remedy)
    return REGISTRY[code]


# --- the call itself (2-9) --------------------------------------------------------------------------------------
USAGE = _reason("usage", 2, "The command line is not valid.", "see --help")
BAD_NAME = _reason(
    "bad-name",
    2,
    "A name holds characters that are not allowed.",
    "use a-z, 0-9, '.', '_' and '-', at most 63, starting with a letter or digit",
)
NOT_ROOT = _reason("not-root", 3, "The operation needs root.", "run it as root")
INTERRUPTED = _reason("interrupted", 130, "The operation was interrupted and undone.", "run it again")
DEADLINE = _reason(
    "deadline",
    4,
    "Something did not happen in time.",
    "look at the worker's log; raise the --timeout if it is only slow",
)
INTERNAL = _reason("internal", 70, "A defect of Hotstart.", "report it with the output of --debug")
FILE_TOO_LARGE = _reason(
    "file-too-large", 5, "A file is larger than it can be.", "nothing of it was used; look at who wrote it"
)
NOT_A_PLAIN_FILE = _reason(
    "not-a-plain-file",
    5,
    "A symlink, device or directory stands where a plain file must be.",
    "nothing of it was used; look at who wrote it",
)

# --- the machine (10-19) ----------------------------------------------------------------------------------------
CRIU_MISSING = _reason(
    "criu-missing",
    10,
    "No usable CRIU was found.",
    "run ./dev setup, or point HOTSTART_CRIU at a tree that holds CRIU 4.2 or newer",
)
CRIU_UNUSABLE = _reason(
    "criu-unusable",
    10,
    "CRIU does not work on this kernel.",
    "see the line of CRIU's own check; a kernel with CONFIG_CHECKPOINT_RESTORE is needed",
)
KERNEL_FEATURE = _reason(
    "kernel-feature",
    11,
    "The kernel lacks something that is needed.",
    "use a kernel 5.15 or newer with the named option",
)
CAPABILITY_MISSING = _reason(
    "capability-missing", 12, "A capability is missing.", "give the process the named capability"
)
CGROUP_UNUSABLE = _reason(
    "cgroup-unusable",
    13,
    "No cgroup hierarchy that can freeze was found.",
    "mount cgroup v2, or the v1 freezer controller",
)
OVERLAY_UNUSABLE = _reason(
    "overlay-unusable",
    14,
    "overlayfs cannot be mounted on the home directory's file system.",
    "put HOTSTART_HOME on ext4, xfs or another file system that overlayfs accepts",
)
NETWORK_UNUSABLE = _reason(
    "network-unusable",
    15,
    "The sandbox's network link could not be made.",
    "see the named step; HOTSTART_SUBNET chooses another network",
)
DISK_FULL = _reason(
    "disk-full",
    16,
    "There is not enough room on the disk.",
    "free the named number of bytes, or point HOTSTART_HOME elsewhere",
)
NOEXEC_STORE = _reason(
    "noexec-store",
    17,
    "Snapshots lie on a noexec mount: memory mapped from there could never become executable.",
    "put HOTSTART_HOME on a mount without noexec",
)

MEMORY_SHORT = _reason(
    "memory-short",
    18,
    "There is not enough free memory for the copies.",
    "restore fewer copies, or stop other sandboxes",
)
BYTECODE_OFF = _reason(
    "bytecode-off",
    0,
    "Python is told to write no bytecode, so every cold start compiles what it imports.",
    "unset PYTHONDONTWRITEBYTECODE before hotstart run, or compile the worker's packages once",
)

# --- sandboxes (20-29) ------------------------------------------------------------------------------------------
NO_SUCH_SANDBOX = _reason("no-such-sandbox", 20, "There is no sandbox of that name.", "hotstart ps lists them")
SANDBOX_EXISTS = _reason(
    "sandbox-exists", 21, "A sandbox of that name exists already.", "choose another --name, or hotstart stop it"
)
SANDBOX_START = _reason(
    "sandbox-start", 22, "The sandbox could not be made.", "hotstart doctor tells what this machine lacks"
)
SANDBOX_DEAD = _reason("sandbox-dead", 23, "The sandbox has ended.", "hotstart logs shows why")
COMMAND_NOT_FOUND = _reason(
    "command-not-found",
    24,
    "The worker's command does not exist in the sandbox.",
    "check the command's spelling and PATH",
)
ADDRESSES_EXHAUSTED = _reason(
    "addresses-exhausted",
    25,
    "No free address is left in the sandbox network.",
    "stop sandboxes, or choose a larger HOTSTART_SUBNET",
)

# --- what cannot be captured (30-39): found in preflight, before the worker is disturbed -----------------------------
IO_URING = _reason(
    "io-uring",
    30,
    "A process holds an io_uring, which CRIU cannot dump.",
    "start it through hotstart run, whose filter answers ENOSYS to io_uring_setup",
)
INOTIFY_OVERLAY = _reason(
    "inotify-overlay",
    30,
    "A process watches files through inotify or fanotify on overlayfs.",
    "turn file watching off in the worker (for example --reload)",
)
OUTSIDE_TCP = _reason(
    "outside-tcp",
    30,
    "A process holds a TCP connection to a peer outside the sandbox.",
    "close it before the capture (usage statistics, metrics, hubs); incoming requests are drained by the engine plugin",
)
INCOMING_TCP = _reason(
    "incoming-tcp",
    30,
    "A client is connected to the worker.",
    "none needed before a capture: the engine plugin drains requests and closes idle connections",
)
OUTSIDE_UDP = _reason(
    "outside-udp",
    30,
    "A process holds a UDP socket that is bound to an address which a copy does not have.",
    "close it before the capture",
)
BOUND_ADDRESS = _reason(
    "bound-address",
    30,
    "A process listens on one address of the sandbox, which a copy does not have.",
    "let the worker listen on 0.0.0.0 or on loopback",
)
HIDDEN_PROCESS = _reason(
    "hidden-process",
    30,
    "A process cannot be looked into, so nothing is known of it.",
    "none needed if the agent, which is root, finds nothing; otherwise see the named process",
)
USER_NAMESPACE = _reason(
    "user-namespace", 30, "The worker lives in a user namespace of its own.", "run it without a user namespace"
)
FOREIGN_NAMESPACE = _reason(
    "foreign-namespace",
    30,
    "A process of the worker made namespaces of its own.",
    "run the worker without nested containers or unshare",
)
NESTED_PID1 = _reason(
    "not-a-child-of-supervisor",
    30,
    "The worker is not a child of the sandbox's supervisor.",
    "start it through hotstart run",
)
STRAY_PROCESS = _reason(
    "stray-process",
    30,
    "A process in the sandbox is not in the worker's tree and would be lost.",
    "do not exec into the sandbox during a capture; end the named process",
)
UNDUMPABLE_FD = _reason(
    "undumpable-fd",
    30,
    "A process holds a descriptor that CRIU cannot dump.",
    "close the named descriptor before the capture",
)
DEVICE_OPEN = _reason(
    "device-open",
    30,
    "A process holds a device node open that cannot be restored.",
    "close the named device before the capture",
)
TRACED = _reason("traced", 30, "A process is being traced.", "detach the debugger")
BIT32 = _reason("thirty-two-bit", 30, "A process is not 64 bit.", "run a 64-bit build")
SYSV_IPC = _reason(
    "sysv-ipc",
    30,
    "The sandbox holds System V IPC objects or POSIX message queues, which are not carried.",
    "use POSIX shared memory or files",
)
RESTORED_WORKER = _reason(
    "restored-worker",
    30,
    "The worker was itself restored with mapped memory, and capturing it again is not supported yet.",
    "capture a cold-started worker",
)
GPU_WORKER = _reason(
    "gpu-worker", 30, "The worker holds a GPU, and this build captures CPU workers only.", "capture a CPU worker"
)
ROTATING_CACHE = _reason(
    "rotating-cache",
    30,
    "A process holds a file open under a cache directory that may be gone at the restore.",
    "set HF_HUB_DISABLE_XET=1 (hotstart run does)",
)
OUTSIDE_FILE = _reason(
    "outside-file",
    30,
    "A process holds a file open that its own mount namespace cannot reach.",
    "close the named descriptor, or give the file to the sandbox as a volume",
)

# --- capture (40-49) --------------------------------------------------------------------------------------------
QUIESCE_FAILED = _reason(
    "quiesce-failed",
    40,
    "The worker could not come to rest; it serves on.",
    "see the worker's words; try again when it is less busy",
)
QUIESCE_BUSY = _reason(
    "quiesce-busy",
    40,
    "Requests did not drain in time; the worker serves on.",
    "try again when it is less busy, or raise --timeout",
)
ENGINE_NOT_READY = _reason(
    "engine-not-ready", 41, "The engine in the sandbox has not finished starting.", "wait until it answers requests"
)
ENGINE_UNSUPPORTED = _reason(
    "engine-unsupported",
    41,
    "The engine, or the way it was configured, is not one that the plugin can bring to rest.",
    "see the named version or option; HOTSTART_ENGINE=none captures a program without hooks",
)
CRIU_DUMP = _reason("criu-dump-failed", 42, "CRIU could not dump the worker; it serves on.", "see CRIU's line")
ROOTFS_DIFF = _reason(
    "rootfs-diff-failed", 43, "The changes of the root file system could not be taken.", "see the named path"
)
TMPFS_COPY = _reason(
    "tmpfs-copy-failed", 43, "The contents of a tmpfs could not be taken.", "see the named path; the worker serves on"
)
CAPTURE_BUSY = _reason("capture-busy", 44, "Another capture or restore of this sandbox is running.", "wait for it")
IMAGE_UNEXPECTED = _reason(
    "image-unexpected",
    45,
    "CRIU's images hold something that Hotstart does not know.",
    "report it; the worker serves on",
)
RESUME_FAILED = _reason(
    "resume-failed",
    46,
    "The worker did not resume.",
    "hotstart logs shows why; the sandbox falls back to a cold start after a restore",
)

# --- snapshots at rest (50-59) ----------------------------------------------------------------------------------
NO_SUCH_SNAPSHOT = _reason(
    "no-such-snapshot", 50, "There is no snapshot of that name.", "hotstart snapshot list shows them"
)
SNAPSHOT_EXISTS = _reason(
    "snapshot-exists",
    51,
    "A snapshot of that name exists already.",
    "choose another --name, or hotstart snapshot rm it",
)
SNAPSHOT_BUSY = _reason("snapshot-busy", 52, "The snapshot is being read.", "wait until its restores are done")
MANIFEST_INVALID = _reason(
    "manifest-invalid", 53, "The manifest cannot be read.", "the snapshot is damaged: capture again"
)
MANIFEST_VERSION = _reason(
    "manifest-version",
    53,
    "The manifest is of another format version.",
    "use the version of Hotstart that wrote it, or capture again",
)
SNAPSHOT_DAMAGED = _reason(
    "snapshot-damaged",
    54,
    "A file of the snapshot is missing, truncated or changed.",
    "capture again; hotstart snapshot verify names every damaged file",
)
MEMORY_FILE_INVALID = _reason(
    "memory-file-invalid", 54, "The memory file's table cannot be read.", "the snapshot is damaged: capture again"
)
STORE_UNUSABLE = _reason(
    "store-unusable",
    55,
    "The snapshot store cannot be used.",
    "see the named path: it must be a directory of root's with mode 0700, on a disk that works",
)

# --- restore (60-69) --------------------------------------------------------------------------------------------
INCOMPATIBLE_CPU = _reason(
    "incompatible-cpu",
    60,
    "This CPU lacks features that the snapshot's worker uses.",
    "restore on a machine with the same CPU features",
)
INCOMPATIBLE_KERNEL = _reason(
    "incompatible-kernel", 60, "The snapshot was taken on another major kernel.", "restore on the same kernel series"
)
INCOMPATIBLE_ROOTFS = _reason(
    "incompatible-rootfs",
    61,
    "Files that the worker has open or mapped differ from those at capture.",
    "restore where the same versions are installed, or capture again",
)
MISSING_MOUNT = _reason(
    "missing-mount", 61, "A mount that the worker uses is missing here.", "give the sandbox the same volumes"
)
CRIU_RESTORE = _reason(
    "criu-restore-failed",
    62,
    "CRIU could not restore the worker.",
    "see CRIU's line; the sandbox falls back to a cold start",
)
PID_TAKEN = _reason("pid-taken", 62, "A pid of the image is taken in the sandbox.", "restore into a fresh sandbox")
ROOTFS_APPLY = _reason(
    "rootfs-apply-failed",
    63,
    "The snapshot's file system changes could not be applied.",
    "see the named path; the sandbox falls back to a cold start",
)
TMPFS_APPLY = _reason(
    "tmpfs-apply-failed",
    63,
    "The snapshot's tmpfs contents could not be put back.",
    "see the named path; the sandbox falls back to a cold start",
)
CANARY_MISMATCH = _reason(
    "canary-mismatch",
    64,
    "The restored worker computes other tokens than at capture.",
    "do not use the snapshot: capture again on this class of machine",
)
COPY_FAILED = _reason(
    "copy-failed",
    65,
    "Memory could not be copied into the restored worker.",
    "see the named range; the sandbox falls back to a cold start",
)
COLD_STARTED = _reason(
    "cold-started",
    66,
    "The restore failed and the sandbox cold starts instead.",
    "see the reason of the failed restore",
)

# --- why memory was copied instead of mapped (reports only) -----------------------------------------------------------
COPIED_FILTER = _reason(
    "copied-no-filter",
    0,
    "The seccomp filter cannot be installed in this process.",
    "none needed: its memory is copied",
)
COPIED_WIPEONFORK = _reason("copied-wipe-on-fork", 0, "The range is wiped on fork.", "none needed: the range is copied")
COPIED_LOCKED = _reason("copied-locked", 0, "The range is locked into memory.", "none needed: the range is copied")
COPIED_GROWSDOWN = _reason("copied-stack", 0, "The range grows down.", "none needed: the range is copied")
COPIED_HUGETLB = _reason("copied-hugetlb", 0, "The range uses huge pages.", "none needed: the range is copied")
COPIED_NOEXEC = _reason(
    "copied-noexec",
    0,
    "The memory file lies on a noexec mount, where a mapping of it could not become executable.",
    "none needed: memory is copied; put HOTSTART_HOME on a mount without noexec",
)
COPIED_GUARD = _reason("copied-guard-pages", 0, "Guard pages lie in the range.", "none needed: the range is copied")
COPIED_USERFAULTFD = _reason(
    "copied-userfaultfd", 0, "The process handles its own page faults.", "none needed: its memory is copied"
)
COPIED_BY_CHOICE = _reason("copied-by-choice", 0, "Copying was asked for.", "none needed")
