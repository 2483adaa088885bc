"""Capture, step by step: quiesce, dump while frozen, let the source serve on, convert, publish.

There is no point of no return before ``publish``: whatever fails or interrupts, the source is brought back to serving
and the staging directory is removed.  With ``stop_source`` the caller stops the sandbox after the snapshot is public.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.hooks.control.protocol import Report
from hotstart.phases import Phases
from hotstart.reasons import IMAGE_UNEXPECTED, ROOTFS_DIFF
from hotstart.snapshot_agent.capture import convert, describe, freeze, quiesce
from hotstart.snapshot_agent.capture.describe import MEMORY, ROOTFS, SKELETON, TABLE
from hotstart.snapshot_agent.capture.rootfs import RootfsDiff, write_diff
from hotstart.snapshot_agent.capture.tmpfs import write_tmpfs
from hotstart.snapshot_agent.catalog.archive.failure import told_as
from hotstart.snapshot_agent.catalog.manifest import Facts, Manifest, TmpfsEntry
from hotstart.snapshot_agent.catalog.store import Staging, Store
from hotstart.snapshot_agent.criu.bundle import Bundle
from hotstart.snapshot_agent.sandbox import view
from hotstart.snapshot_agent.sandbox.contract import Sandbox
from hotstart.snapshot_agent.sandbox.enter import KERNDAT

Progress = Callable[[str, float], None]
WORK = "work"
UNDO_SECONDS = 60.0
"""Bringing the source back has this much time of its own, whatever is left of the capture's deadline."""


@dataclass(frozen=True)
class Order:
    """What to capture and how."""

    sandbox: Sandbox
    name: str
    facts: Facts
    """This machine, as preflight gathered it."""
    bundle: Bundle
    kerndat: Path | None
    stop_source: bool = False
    force_copy: bool = False
    timeout_s: float = 120.0


@dataclass
class _Taken:
    """What the frozen part left in the staging directory."""

    frozen: freeze.Frozen
    rootfs: RootfsDiff | None
    tmpfs: list[TmpfsEntry]
    stdio: tuple[str, str, str]


@dataclass
class _Source:
    """Whether the source was ordered to rest and not ordered back."""

    rests: bool = False


def capture(order: Order, store: Store, told: Progress) -> Manifest:
    """Capture a sandbox and publish the snapshot; returns its manifest.

    Raises HotstartError with the failing step's reason; the source serves on then and nothing is left behind.
    """
    phases = Phases()
    deadline = Deadline.after(order.timeout_s, "the capture")
    report = quiesce.engine_report(order.sandbox.control, order.sandbox.spec.engine)
    staging = store.begin(order.name)
    source = _Source()
    try:
        with told_as(IMAGE_UNEXPECTED, "writing the snapshot"):
            report, taken = _take(order, report, source, staging, deadline, phases, told)
            manifest = _write(order, report, taken, staging, phases, told)
        told("publish", 0.0)
        store.publish(staging, manifest)  # the point of no return: from here on the snapshot exists
    except BaseException as error:
        try:
            with contextlib.suppress(OSError):
                store.discard(staging)  # first: where the disk is full, even the order to serve needs the room
        finally:
            if source.rests:
                _undo(order, error)
        raise
    return manifest


def _write(
    order: Order, report: Report | None, taken: _Taken, staging: Staging, phases: Phases, told: Progress
) -> Manifest:
    """From CRIU's dump to all files of the snapshot and its manifest; the source has no part in it."""
    with phases.span("convert"):
        converted = convert.convert(
            staging.path / SKELETON,
            staging.path / MEMORY,
            staging.path / TABLE,
            noexec=bool(os.statvfs(staging.path).f_flag & os.ST_NOEXEC),
            force_copy=order.force_copy,
            told=lambda fraction: told("convert", fraction),
        )
    shutil.rmtree(staging.path / WORK)  # CRIU's logs; a failure has told what was in them
    with phases.span("digest"):
        told("digest", 0.0)
        files = describe.digest_files(staging.path)
    phases.finish()
    frozen_s = taken.frozen.running - taken.frozen.asked
    return describe.manifest(
        describe.Capture(
            order.name,
            order.sandbox,
            order.facts,
            report,
            taken.stdio,
            taken.tmpfs,
            converted,
            files,
            phases,
            frozen_s,
        ),
        staging.path,
    )


def _take(
    order: Order,
    report: Report | None,
    source: _Source,
    staging: Staging,
    deadline: Deadline,
    phases: Phases,
    told: Progress,
) -> tuple[Report | None, _Taken]:
    """The part that involves the source: it rests, is dumped, and serves again (or stays at rest with stop_source)."""
    control, alive = order.sandbox.control, order.sandbox.alive
    if report is not None:
        told("quiesce", 0.0)
        source.rests = True  # from the order on: an interrupted wait must be undone too
        with phases.span("quiesce"):
            report = quiesce.quiesce(control, deadline, alive)
    told("dump", 0.0)
    taken = _dump(order, staging.path, deadline, phases)
    if source.rests and not order.stop_source:
        told("resume", 0.0)
        with phases.span("resume"):
            quiesce.serve_on(control, Deadline.after(UNDO_SECONDS, "the source to serve again"), alive)
        source.rests = False
    return report, taken


def _undo(order: Order, error: BaseException) -> None:
    """Let the source serve again; ``error`` is told if that fails too.

    Then the worker helps itself: when the caller lets the control directory's lock go, it ends its rest.
    """
    deadline = Deadline.after(UNDO_SECONDS, "the source to serve again")
    try:
        quiesce.serve_on(order.sandbox.control, deadline, order.sandbox.alive)
    except (HotstartError, OSError) as second:
        error.add_note(f"and the source could not be told to serve again: {second}")


def _dump(order: Order, staging: Path, deadline: Deadline, phases: Phases) -> _Taken:
    """Dump the tree and copy the files that change with it while it is frozen."""
    images, work = staging / SKELETON, staging / WORK
    images.mkdir(mode=0o700)
    work.mkdir(mode=0o700)
    pid = order.sandbox.init_pid
    upper, stdio = view.upperdir(pid), view.stdio(pid)
    mounts = view.tmpfs_mounts(pid)
    rootfs: list[RootfsDiff] = []
    tmpfs: list[TmpfsEntry] = []

    def while_frozen() -> None:
        with phases.span("rootfs"):
            if upper is not None:
                rootfs.append(write_diff(upper, staging / ROOTFS, skip_mounts=view.mount_points(pid)))
        with phases.span("tmpfs"):
            for number, target in enumerate(mounts):
                name = f"tmpfs-{number}.tar"
                write_tmpfs(Path(f"/proc/{pid}/root"), target, staging / name, skip=[KERNDAT])
                tmpfs.append(TmpfsEntry(target=target, path=name))

    began = time.monotonic()
    with told_as(ROOTFS_DIFF, "copying files while the worker was frozen"):
        frozen = freeze.dump(
            pid, view.freezer_dir(pid), order.bundle, images, work, order.kerndat, deadline, while_frozen
        )
    phases.add("enter", began, frozen.asked)
    phases.add("dump", frozen.asked, frozen.stopped)
    phases.add("thaw", frozen.stopped, frozen.running)
    return _Taken(frozen, rootfs[0] if rootfs else None, tmpfs, stdio)
