"""A process that is to a supervisor what CRIU leaves behind: it has pid ROOT_PID and belongs to pid 1."""

from __future__ import annotations

import subprocess
import sys

from hotstart.names import ROOT_PID

_PLANT = """
import os, sys
from hotstart.linux.syscalls import CLONE_NEWPID, CLONE_NEWNS, setns
init, wanted, script = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
fds = [os.open(f"/proc/{init}/fd/{n}", os.O_RDWR) for n in range(3)]
pid, mnt = (os.open(f"/proc/{init}/ns/{kind}", os.O_RDONLY) for kind in ("pid", "mnt"))
last = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY)
setns(pid, CLONE_NEWPID)
setns(mnt, CLONE_NEWNS)
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
os.write(last, str(wanted - 1).encode())
root = os.fork()
if root:
    os._exit(0 if root == wanted else 1)
os.setsid()
for number, fd in enumerate(fds):
    os.dup2(fd, number)
os.execv("/bin/sh", ["sh", "-c", script])
"""


def plant(init_pid: int, script: str, pid: int = ROOT_PID) -> None:
    """Start ``script`` with that pid in the sandbox; its parent ends at once, so it goes to the supervisor."""
    subprocess.run([sys.executable, "-c", _PLANT, str(init_pid), str(pid), script], check=True)
