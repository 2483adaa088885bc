"""The stub above the worker's command: root of the dumped tree, subreaper, and small, because it is in every snapshot.

It holds nothing but stdio: no timer, no other descriptor, no thread.  It is frozen, dumped and restored in the middle
of waiting for a signal, and goes on waiting.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings  # noqa: F401 - os.execvpe imports it, when the worker's user may be unable to read the library

from hotstart.hooks.control import start as startfile
from hotstart.hooks.control.signals import FORWARDED
from hotstart.hooks.control.start import Start
from hotstart.hooks.launcher import capabilities, seccomp
from hotstart.hooks.launcher.environment import environment
from hotstart.linux.syscalls import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, prctl, seccomp_set_filter

TYPE_CHECKING = False  # the real one comes with typing, which costs 5 ms and 1 MB
if TYPE_CHECKING:
    from typing import NoReturn

NOT_FOUND, NOT_STARTED = 127, 126
"""Exit statuses of a command that does not exist, and of one that cannot be executed (as shells use them)."""


def main() -> NoReturn:
    """Entry of ``python -c … hotstart-launcher START_FILE``: never returns."""
    os._exit(launch(startfile.read(sys.argv[-1])))


def launch(start: Start) -> int:
    """Start the command and stay above it until it ends; returns its exit status, 128 + signal if one killed it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    become_stub(start)
    child = os.fork()
    if child == 0:
        _execute(start)
    return stay_above(child)


def become_stub(start: Start) -> None:
    """Take on what the whole tree inherits; raises OSError."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # a daemonised grandchild stays in the tree; below pid 1 it would not be dumped
    seccomp_set_filter(seccomp.program())  # needs CAP_SYS_ADMIN, so it comes before everything that follows
    capabilities.limit(_permitted())
    os.setgroups(start.groups)
    os.setresgid(start.gid, start.gid, start.gid)
    os.setresuid(start.uid, start.uid, start.uid)
    prctl(PR_SET_DUMPABLE, 1)  # setuid cleared it
    os.umask(0o022)


def stay_above(child: int) -> int:
    """Reap what ends, pass signals on, until ``child`` has ended; returns its status."""
    every = signal.valid_signals()
    while True:
        number = signal.sigwaitinfo(every).si_signo
        if number in FORWARDED:
            os.kill(child, number)
        status = reap(child)
        if status is not None:
            return status


def reap(wanted: int) -> int | None:
    """Collect all children that have ended; the exit status of ``wanted`` if it is one of them."""
    result = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return result
        if pid == 0:
            return result
        if pid == wanted:
            code = os.waitstatus_to_exitcode(status)
            result = code if code >= 0 else 128 - code


def _execute(start: Start) -> NoReturn:
    """In the child: become the command, with the signals that a program expects; says in one line why it could not."""
    status, message = NOT_STARTED, ""
    try:
        for number in signal.valid_signals():
            # Python changed some for itself; others came ignored from whoever started Hotstart (nohup: SIGHUP).
            if signal.getsignal(number) not in (signal.SIG_DFL, None):
                signal.signal(number, signal.SIG_DFL)
        os.chdir(start.cwd)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        env = environment(start.env, start.engine)
        try:
            os.execvpe(start.command[0], start.command, env)
        except (FileNotFoundError, NotADirectoryError):
            status, message = NOT_FOUND, f"command-not-found: {start.command[0]} (PATH is {env['PATH']})"
        except OSError as error:
            message = f"sandbox-start: {start.command[0]}: {error.strerror}"
    except OSError as error:
        message = f"sandbox-start: the working directory {start.cwd}: {error.strerror}"
    finally:
        if message:
            os.write(2, os.fsencode(f"hotstart: {message}\n"))
        os._exit(status)


def _permitted() -> int:
    """The permitted capabilities of this process, as a bit mask."""
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"CapPrm:"):
                return int(line.split()[1], 16)
    raise OSError("/proc/self/status does not name capabilities")
