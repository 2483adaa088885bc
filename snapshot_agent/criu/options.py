"""What CRIU is asked for (pure): one request for a dump, one for a restore, each option with its reason.

The recipe runs CRIU inside the sandbox's own namespaces, so it sees no foreign namespace: no ``--root``, no external
mounts, no nested pid namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hotstart.snapshot_agent.criu import images_pb2 as pb

DUMP, RESTORE, NOTIFY = 1, 2, 6
_IGNORE_CGROUPS = 0
_NETWORK_LOCK_SKIP = 3
GHOST_LIMIT = 64 << 20
DUMP_LOG, RESTORE_LOG = "dump.log", "restore.log"


@dataclass(frozen=True)
class Descriptors:
    """Numbers of descriptors in the process that talks to CRIU (images, work) and in CRIU itself (freezer)."""

    images: int
    work: int
    freezer: int = -1


def dump(root_pid: int, fds: Descriptors, *, timeout_s: int) -> pb.Request:
    """Dump the tree below ``root_pid`` and let it run on."""
    request = pb.Request(type=DUMP)
    opts = _common(request, fds, DUMP_LOG)
    opts.pid = root_pid
    # Kill mode inside the pid namespace dies with the tree before it answers; stopped mode leaves sockets in repair.
    opts.leave_running = True
    # Connections that are being accepted at this moment are left out instead of failing the dump.
    opts.tcp_skip_in_flight = True
    opts.network_lock = _NETWORK_LOCK_SKIP  # the tree is frozen and peers are inside it; no iptables in the container
    opts.ghost_limit = GHOST_LIMIT  # deleted-open files travel in the images
    opts.freeze_cgroup = f"/proc/self/fd/{fds.freezer}"  # stops pid 1 and strays too
    opts.timeout = timeout_s
    return request


def restore(fds: Descriptors, inherit: Mapping[str, int]) -> pb.Request:
    """Restore the tree; ``inherit`` maps CRIU's names (``pipe:[1]``, the memory file) to descriptors in CRIU."""
    request = pb.Request(type=RESTORE)
    opts = _common(request, fds, RESTORE_LOG)
    for key, fd in inherit.items():
        opts.inherit_fd.add(key=key, fd=fd)
    return request


def _common(request: pb.Request, fds: Descriptors, log: str) -> pb.Options:
    opts = request.opts
    opts.images_dir_fd = fds.images
    opts.work_dir_fd = fds.work
    opts.log_level = 2
    opts.log_file = log
    opts.notify_scripts = True
    opts.manage_cgroups_mode = _IGNORE_CGROUPS  # the helper joins the sandbox's cgroups before CRIU starts
    opts.tcp_established = True  # loopback pairs inside the tree
    opts.file_locks = True
    # glibc makes a named semaphore as a temporary file and link(): its mapping refers to an unlinked name.
    opts.link_remap = True
    return opts
