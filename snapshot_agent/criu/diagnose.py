"""From CRIU's log to one line and a reason (pure)."""

from __future__ import annotations

import re

from hotstart import reasons
from hotstart.reasons import Reason

_KNOWN: tuple[tuple[str, Reason], ...] = (
    (r"anon_inode:\[io_uring\]|io_uring", reasons.IO_URING),
    (r"fsnotify: .*(Can't dump|handle)|inotify", reasons.INOTIFY_OVERLAY),
    (r"Can't fork for \d+: File exists|pid mismatch|set_tid.*EEXIST", reasons.PID_TAKEN),
    (r"bad size|bad mode|Can't open file (?!dev/shm)", reasons.INCOMPATIBLE_ROOTFS),
    (r"No space left on device", reasons.DISK_FULL),
    (r"userns|user namespace", reasons.USER_NAMESPACE),
    (r"CPU|cpu:.*(xsave|feature|mismatch)", reasons.INCOMPATIBLE_CPU),
    (r"Connected TCP socket|Can't connect inet socket back", reasons.OUTSIDE_TCP),
    (r"Can't dump file \d+ of that type", reasons.UNDUMPABLE_FD),
)
_ERROR = re.compile(r"^(?:\([\d.]+\)\s+)?(?:\d+:\s+)?Error\s+\([^)]*\):\s*(?:\d+:\s+)?(.*)$")

_HARMLESS = re.compile(r"rlimit: Can't setup RLIMIT_NOFILE for self")
"""Without CAP_SYS_RESOURCE: CRIU goes on with the limit that it has."""


def errors(log: str) -> list[str]:
    """The texts of CRIU's error lines, without their stamps and without those that do no harm."""
    found = [match[1].strip() for line in log.splitlines() if (match := _ERROR.match(line.strip()))]
    return [text for text in found if not _HARMLESS.match(text)]


def explain(log: str, fallback: Reason) -> tuple[Reason, str]:
    """The best reason for a failure and CRIU's first error line, which names the cause (later ones are fallout)."""
    lines = errors(log)
    for line in lines:
        for pattern, reason in _KNOWN:
            if re.search(pattern, line):
                return reason, line
    if lines:
        return fallback, lines[0]
    words = log.strip().rpartition("\n")[2].strip()
    return (
        fallback,
        f"CRIU left no error in its log, which ends with: {words}" if words else "CRIU left nothing in its log",
    )
