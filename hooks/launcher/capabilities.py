"""What root inside a sandbox may do: the usual set of a container, nothing that reaches outside of it."""

from __future__ import annotations

from hotstart.linux.syscalls import PR_CAPBSET_DROP, capset, prctl

KEPT: dict[str, int] = {
    "chown": 0,
    "dac_override": 1,
    "fowner": 3,
    "fsetid": 4,
    "kill": 5,
    "setgid": 6,
    "setuid": 7,
    "setpcap": 8,
    "net_bind_service": 10,
    "net_raw": 13,
    "ipc_lock": 14,  # engines lock staging buffers
    "sys_chroot": 18,
    "sys_nice": 23,  # engines place threads and memory on NUMA nodes
    "sys_resource": 24,  # engines raise their limits
    "audit_write": 29,
    "setfcap": 31,
}
"""Names and numbers of capability(7).  Without mknod and sys_admin the host's devices and mounts are out of reach."""
LAST = 63


def mask(held: int) -> int:
    """The bits that stay of ``held`` (pure)."""
    return held & sum(1 << number for number in KEPT.values())


def limit(held: int) -> None:
    """Drop all others, for good: from the bounding set and, ``held`` being the permitted set, from this process.

    Needs CAP_SETPCAP.  Raises OSError.
    """
    for number in range(LAST + 1):
        if number not in KEPT.values():
            try:
                prctl(PR_CAPBSET_DROP, number)
            except OSError:
                break  # EINVAL: beyond the last one that this kernel knows
    kept = mask(held)
    capset(effective=kept, permitted=kept, inheritable=0)
