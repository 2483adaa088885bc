"""The audit on a real overlay: a watch on it is found, a watch beside it is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hotstart import audit

pytestmark = pytest.mark.root

WATCHER = """
import ctypes, os, sys
from hotstart.linux.syscalls import CLONE_NEWNS, MS_PRIVATE, MS_REC, mount, unshare
base, watched = sys.argv[1:]
unshare(CLONE_NEWNS)
mount("none", "/", flags=MS_REC | MS_PRIVATE)
for name in ("lower", "upper", "work", "merged"):
    os.mkdir(f"{base}/{name}")
mount("overlay", f"{base}/merged", "overlay", 0, f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work")
libc = ctypes.CDLL(None)
watch = libc.inotify_init()
assert libc.inotify_add_watch(watch, os.fsencode(f"{base}/{watched}"), 0x100) >= 0
os.write(1, b"watches\\n")
sys.stdin.read()
"""


@pytest.mark.parametrize(("watched", "codes"), [("merged", ["inotify-overlay"]), ("upper", [])])
def test_a_watch_on_overlayfs(tmp_path: Path, watched: str, codes: list[str]) -> None:
    command = [sys.executable, "-c", WATCHER, str(tmp_path), watched]
    # Pipes only: a file of the old mount namespace would be a finding of its own.
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"watches\n"
            found = audit.judge(audit.gather([process.pid], reference=process.pid))
        finally:
            process.kill()
    assert [finding.reason.code for finding in found] == codes
