"""Making a local sandbox: files and cgroups here, everything else by the shim, which is exec'ed fresh."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import select
import subprocess
import sys
from pathlib import Path

import hotstart
from hotstart import naming, reasons
from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.hooks.control import start as startfile
from hotstart.hooks.control.directory import ControlDirectory
from hotstart.linux import procfs
from hotstart.linux.process import boot_id
from hotstart.reasons import DISK_FULL, NOT_ROOT, OVERLAY_UNUSABLE, SANDBOX_EXISTS, SANDBOX_START
from hotstart.snapshot_agent.sandbox import cgroups, inject, plan, state, subnet
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec
from hotstart.snapshot_agent.sandbox.order import CONTROL, LIVES, LOG, MERGED, UPPER, WORK, Order, pack
from hotstart.snapshot_agent.sandbox.removal import remove
from hotstart.snapshot_agent.sandbox.state import Lock, Record

ANSWER_S = 30.0
"""Seconds that the shim may need; 0.03 is usual."""
_SITE = str(Path(hotstart.__file__).resolve().parent.parent)
_BOOT = (
    "import os, sys; os.fork() and os._exit(0); "  # the parent is reaped at once, the child belongs to nobody
    f"sys.path.append({_SITE!r}); from hotstart.snapshot_agent.sandbox.shim import main; main()"
)
_EMPTY = "empty"
_ODD = frozenset(",:\\\n")
"""Characters that an option of an overlay mount cannot carry."""


def make(home: Path, spec: SandboxSpec, *, placeholder: bool, restored_from: str) -> None:
    """Make the sandbox; returns when its supervisor's program has been started.

    Raises ``bad-name``, ``not-root``, ``sandbox-exists``, ``disk-full``, ``sandbox-start`` and the reasons of what this
    machine lacks; nothing is left behind then.
    """
    naming.check(spec.name, "sandbox")
    if os.geteuid() != 0:
        raise HotstartError(NOT_ROOT, "making a sandbox needs root")
    try:
        _claim_and_make(home.resolve(), spec, placeholder, restored_from)
    except OSError as error:
        reason = DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else SANDBOX_START
        raise HotstartError(reason, str(error), tried=f"making the sandbox {spec.name}") from error


def _claim_and_make(home: Path, spec: SandboxSpec, placeholder: bool, restored_from: str) -> None:
    where = state.directory(home, spec.name)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    where.parent.mkdir(mode=0o700, exist_ok=True)
    made = False
    try:
        try:
            where.mkdir(mode=0o700)
        except FileExistsError:
            raise HotstartError(SANDBOX_EXISTS, f"there is a sandbox {spec.name} already") from None
        made = True
        with Lock(where) as lock:
            lock.take()
            _make(home, where, lock.fd, spec, placeholder, restored_from)
    except BaseException:
        with contextlib.suppress(HotstartError, OSError):  # the first error is the one to tell
            if made:
                remove(home, spec.name, grace_s=0)
            else:
                where.rmdir()  # Ctrl-C right after mkdir; a sandbox of somebody else is not empty
        raise


def _prepare(home: Path, where: Path, spec: SandboxSpec, placeholder: bool, restored_from: str) -> Order:
    """Files, directories and cgroups; what is left to do is the order."""
    start = _start_file(spec)
    rootfs = _rootfs(spec.rootfs, home)
    base, size = subnet.network(os.environ)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    state.write_record(where, Record(spec=spec, placeholder=placeholder, created=now, restored_from=restored_from))
    site, empty = inject.site(home), home / _EMPTY
    empty.mkdir(mode=0o755, exist_ok=True)
    for name in (WORK, MERGED):
        (where / name).mkdir(mode=0o700)
    # Mode and owner of the upper directory are those of "/" in the sandbox.
    (where / UPPER).mkdir()
    like = rootfs.stat()
    os.chown(where / UPPER, like.st_uid, like.st_gid)
    (where / UPPER).chmod(like.st_mode & 0o7777)
    ControlDirectory.create(where / CONTROL, spec.uid, spec.gid)
    mounts = procfs.mountinfo("self")
    v1, v2 = cgroups.create(cgroups.name_of(home, spec.name))
    sources = {"control": str(where / CONTROL), "site": str(site), "empty": str(empty), "home": str(home)}
    mode = "placeholder" if placeholder else "run"
    return Order(
        name=spec.name,
        directory=str(where),
        rootfs=str(rootfs),
        cgroups=[str(path) for path in v1],
        unified=str(v2 or ""),
        base=base,
        size=size,
        steps=plan.steps(spec, start, sources, mounts, cgroups.hierarchies(mounts)),
        argv=startfile.supervisor_command(os.path.realpath(sys.executable), mode, spare=True),
        boot=boot_id(),
    )


def _start_file(spec: SandboxSpec) -> bytes:
    try:
        for word in (*spec.command, *spec.env, *spec.env.values(), spec.cwd):
            word.encode()  # manifests are JSON, so bytes that are not UTF-8 cannot travel
        return startfile.encode(
            startfile.Start(spec.command, spec.env, spec.cwd, spec.uid, spec.gid, spec.groups, spec.engine)
        )
    except ValueError as error:
        raise HotstartError(SANDBOX_START, f"the command cannot be started: {error}") from None


def _rootfs(path: str, home: Path) -> Path:
    rootfs = Path(path).resolve()
    if not rootfs.is_dir():
        raise HotstartError(SANDBOX_START, f"the root file system {path} is not a directory")
    for odd in (home, rootfs):
        if _ODD & set(str(odd)):
            raise HotstartError(OVERLAY_UNUSABLE, f"{odd} holds a character that overlayfs cannot take (, : \\)")
    return rootfs


def _make(home: Path, where: Path, lock: int, spec: SandboxSpec, placeholder: bool, restored_from: str) -> None:
    """Start the shim, prepare while its interpreter starts, hand it the order, wait for its answer."""
    answer, theirs = os.pipe()
    try:
        try:
            shim = _start_shim(where, theirs, lock)
        finally:
            os.close(theirs)
        order = b""
        try:
            order = pack(_prepare(home, where, spec, placeholder, restored_from))
        finally:
            shim.communicate(order)  # returns at once: the shim goes on in a child; without an order it ends
        _read_answer(answer, where)
    finally:
        os.close(answer)


def _start_shim(where: Path, answer: int, lock: int) -> subprocess.Popen[bytes]:
    log = os.open(where / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # -I -S: the caller's environment has no say in a root process, and start-up is short.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOT, "hotstart-shim", where.name, str(answer), str(lock)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[answer, lock],
            cwd="/",
            env={},
        )
    finally:
        os.close(log)


def _read_answer(answer: int, where: Path) -> None:
    """Return if the sandbox lives; raise what the shim, or its child, tells."""
    deadline = Deadline.after(ANSWER_S, "the sandbox to start")
    data = b""
    while True:
        ready, _, _ = select.select([answer], [], [], deadline.remaining())
        deadline.check()
        if not ready:
            continue
        chunk = os.read(answer, 1 << 16)
        if not chunk:
            break
        data += chunk
    for line in data.decode(errors="replace").splitlines():
        if line.startswith("error\0"):
            _word, code, detail = line.split("\0", 2)
            raise HotstartError(reasons.REGISTRY[code], detail, tried=f"making the sandbox {where.name}")
    if LIVES not in data:
        words = (where / LOG).read_text(errors="replace").strip().splitlines()
        raise HotstartError(SANDBOX_START, f"the shim died: {words[-1] if words else 'without a word'}")
