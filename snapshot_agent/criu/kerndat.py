"""CRIU's cache of kernel features, made once per boot: without it every CRIU process probes the kernel anew.

CRIU keeps the cache in /run when that is a tmpfs.  A sandbox's /run is fresh (no cache) or the worker's (not to be
believed), so Hotstart makes its own in a private mount namespace and hands it to each CRIU.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import hotstart
from hotstart.durable import write_file
from hotstart.linux.syscalls import CLONE_NEWNS, MS_PRIVATE, MS_REC, mount, unshare
from hotstart.snapshot_agent.criu.bundle import Bundle, locate

_SITE = str(Path(hotstart.__file__).resolve().parent.parent)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CACHE = "/run/criu.kdat"


def cached(home: Path, bundle: Bundle) -> Path | None:
    """The cache file for this boot and this CRIU, made if missing; None if CRIU makes none here (it then probes)."""
    binary = (bundle.root / bundle.binary).stat()
    key = f"{_BOOT_ID.read_text()}{os.uname().release}{bundle.root}{binary.st_mtime_ns}{binary.st_size}"
    path = home / "criu" / f"kerndat-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if path.exists():
        return path
    program = f"import sys; sys.path.insert(0, {_SITE!r}); from {__name__} import main; main()"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(bundle.root)],
        capture_output=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    if done.returncode or not done.stdout:
        return None
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(path, done.stdout, durable=False)
    return path


def main() -> None:
    """Helper process: let CRIU fill its cache on a private tmpfs and write it to standard output."""
    unshare(CLONE_NEWNS)
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("hotstart", "/run", "tmpfs")
    bundle = locate(Path(sys.argv[-1]))
    subprocess.run([*bundle.command(str(bundle.root)), "check"], capture_output=True, timeout=50, check=False)
    with open(_CACHE, "rb") as f:
        sys.stdout.buffer.write(f.read())
