"""Pid 1 of a sandbox: starts, adopts or cold starts the worker's root, reaps, forwards signals, ends with its status.

``run`` starts the launcher as pid ROOT_PID.  ``placeholder`` starts nothing and takes no pid until the agent writes
``agent/root``:

* a root pid: adopt the restored process.  To be written after CRIU has ended successfully.  Should the process have
  died meanwhile, the status with which it was reaped is the supervisor's.  Deaths of the same pid in failed earlier
  attempts do not count: what counts is whether the process lives when the order arrives.
* a reason: cold start.  Whatever lives in the sandbox is killed first, an adopted tree included, so that the agent can
  still fall back when a restored worker turns out to be unusable.  An adopted root that dies by itself ends all.

All signals stay blocked, from before the interpreter starts to the end: none is lost, not even one that arrives early.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from hotstart.hooks.control.signals import FORWARDED
from hotstart.hooks.control.start import ORPHANED_SIGNAL, SITE_PATH, SPARE_FDS
from hotstart.hooks.supervisor.adoption import AdoptionFile
from hotstart.names import AGENT_DIR, CONTROL_PATH, ROOT_PID

TYPE_CHECKING = False  # the real one comes with typing, which costs 5 ms and 1 MB
if TYPE_CHECKING:
    from typing import NoReturn

WAITING_S, ADOPTED_S, DRAINING_S = 0.008, 0.1, 0.1
"""How often the supervisor looks for an order before and after it has a root, and empties the pipes once orphaned."""
KILL_S = 10.0
"""How long processes that were killed may take to be gone."""
EVERY = frozenset(int(number) for number in signal.valid_signals())
"""Made once: each call makes a set of 62 enumeration members, and a waiting placeholder turns 120 times a second."""
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
"""Signals that end a supervisor which has no root yet."""
KILLED = 128 + signal.SIGKILL


def main() -> NoReturn:
    """Entry of ``python -c … hotstart-supervisor MODE START_FILE spare|bare``: never returns."""
    mode, start_path, spare = sys.argv[-3:]
    signal.pthread_sigmask(signal.SIG_BLOCK, EVERY)
    for fd in SPARE_FDS if spare == "spare" else ():
        os.set_inheritable(fd, False)
    order = f"{CONTROL_PATH}/{AGENT_DIR}/root" if mode == "placeholder" else ""
    supervisor = Supervisor(start_path, order, SPARE_FDS[:2] if spare == "spare" else ())
    os._exit(supervisor.supervise())


class Supervisor:
    """What pid 1 knows; ``order`` is the path of the agent's order, empty: start at once and look for none."""

    def __init__(self, start_path: str, order: str, spare: tuple[int, ...] = ()) -> None:
        self.start_path = start_path
        self.orders = AdoptionFile(order) if order else None
        self.spare = spare
        self.root = 0
        self.nonce = ""
        self.ended: dict[int, int] = {}
        """Last exit status of every pid that was reaped."""
        self.orphaned = False

    def supervise(self) -> int:
        """Until the end; returns the exit status."""
        if self.orders is None:
            self.start()
        while True:
            status = self._turn()
            if status is not None:
                return status

    def start(self) -> None:
        """Start the launcher as the worker's root."""
        aim_pid(ROOT_PID)
        self.root = os.fork()
        if self.root == 0:
            execute_launcher(self.start_path)
        if self.root != ROOT_PID:
            say(f"the worker's root got pid {self.root} instead of {ROOT_PID}: this worker cannot be captured")

    def _turn(self) -> int | None:
        """Wait for one thing to happen and answer it; the exit status once there is one."""
        patience = self._patience()
        if patience is None:
            number = signal.sigwaitinfo(EVERY).si_signo
        else:
            info = signal.sigtimedwait(EVERY, patience)
            number = info.si_signo if info else 0
        self._reap()
        if self.root and self.root in self.ended:
            return self.ended[self.root]
        if self.root and self.orders is not None and not exists(self.root):
            say(f"the restored process {self.root} was taken back")  # by CRIU, whose child it still was
            self.root = 0
        status = self._order()  # first: a signal that comes together with an order is for whoever is adopted
        if status is not None:
            return status
        if number == ORPHANED_SIGNAL:
            self._become_orphan()
        elif number in FORWARDED and self.root:
            forward(self.root, number)
        elif number in ENDING:
            return 128 + number
        if self.orphaned:
            drain(self.spare)
        return None

    def _patience(self) -> float | None:
        """Seconds until the supervisor must look around by itself; None: only signals matter."""
        if self.orders is not None:
            return ADOPTED_S if self.root else WAITING_S
        return DRAINING_S if self.orphaned else None

    def _order(self) -> int | None:
        """Carry out a fresh order of the agent; the exit status if it ends the sandbox."""
        if self.orders is None:
            return None
        try:
            order = self.orders.fresh()
        except (OSError, ValueError) as error:
            say(f"an order that cannot be read was ignored: {error}")
            return None
        if order is None or order.nonce == self.nonce:
            return None
        self.nonce = order.nonce
        if order.cold_start_reason:
            say(f"restore failed ({order.cold_start_reason}), cold starting")
            self._kill_all()
            self.start()
            return None
        if self.root or order.root_pid <= 1:
            say("an order to adopt was ignored")
            return None
        return self._adopt(order.root_pid)

    def _adopt(self, pid: int) -> int | None:
        if not exists(pid):
            say(f"the restored process {pid} has ended")
            return self.ended.get(pid, KILLED)
        self.ended.pop(pid, None)  # of an earlier attempt
        self.root = pid
        return None

    def _kill_all(self) -> None:
        """Kill everything else in the pid namespace and wait until it is gone, so that its pids are free."""
        self.root = 0
        until = time.monotonic() + KILL_S
        while time.monotonic() < until:
            try:
                os.kill(-1, signal.SIGKILL)  # never reaches the caller, nor anything outside its pid namespace
            except ProcessLookupError:
                break
            self._reap()
            time.sleep(0.001)
        self._reap()
        self.ended.clear()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            self.ended[pid] = code if code >= 0 else 128 - code

    def _become_orphan(self) -> None:
        """The reader of the pipes has died.

        The spare read ends keep the worker from dying of SIGPIPE; from now on they are emptied here, and what the
        worker writes is lost.
        """
        self.orphaned = True
        for fd in self.spare:
            os.set_blocking(fd, False)


def aim_pid(wanted: int) -> None:
    """Make the next process of this pid namespace get the pid ``wanted``, if that is possible."""
    try:
        fd = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        burn_pids(wanted)
        return
    try:
        os.write(fd, str(wanted - 1).encode())
    finally:
        os.close(fd)


def burn_pids(wanted: int) -> None:
    """Where /proc/sys is read-only (a pod): use up the pids before ``wanted``."""
    while True:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        if pid >= wanted - 1:
            return


def execute_launcher(start_path: str) -> NoReturn:
    """In a forked child: become the launcher, leader of a session of its own."""
    try:
        os.setsid()
        code = f"import sys; sys.path.append({SITE_PATH!r}); from hotstart.hooks.launcher.main import main; main()"
        os.execve(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", code, "hotstart-launcher", start_path],
            {},
        )
    except OSError as error:
        say(f"sandbox-start: {sys.executable}: {error.strerror}")
    finally:
        os._exit(126)


def forward(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # its end is reaped in the next turn


def exists(pid: int) -> bool:
    """True if ``pid`` is there, be it as a zombie that waits to be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def drain(fds: tuple[int, ...]) -> None:
    """Throw away what non-blocking descriptors hold."""
    for fd in fds:
        try:
            while os.read(fd, 1 << 16):
                pass
        except BlockingIOError:
            pass


def say(message: str) -> None:
    """One line on stderr, for the sandbox's log."""
    os.write(2, os.fsencode(f"hotstart: {message}\n"))
