"""Restore of one copy: a placeholder, its files, the skeleton, copied memory, and the worker's own resume.

Whatever fails before the worker reports ``resumed``, the caller decides about the cold start; this module leaves the
placeholder behind and says why.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hotstart import reasons
from hotstart.clock import Deadline
from hotstart.durable import read_bounded
from hotstart.errors import HotstartError
from hotstart.hooks.control.directory import new_nonce
from hotstart.hooks.control.protocol import Adoption, Canary, CanaryToken, ControlError, Order, Report, State, Verb
from hotstart.names import ROOT_PID
from hotstart.phases import Phases
from hotstart.reasons import CANARY_MISMATCH, RESUME_FAILED
from hotstart.snapshot_agent.catalog.manifest import Manifest
from hotstart.snapshot_agent.criu.bundle import Bundle
from hotstart.snapshot_agent.memory import format as table_format
from hotstart.snapshot_agent.memory.format import Kind
from hotstart.snapshot_agent.restore import fill, thaw
from hotstart.snapshot_agent.sandbox import view
from hotstart.snapshot_agent.sandbox.contract import Sandbox
from hotstart.snapshot_agent.sandbox.helper import Helper

MakePlaceholder = Callable[[], Sandbox]


@dataclass(frozen=True)
class Source:
    """A snapshot that is leased and trusted, and the tools to restore it with."""

    path: Path
    manifest: Manifest
    bundle: Bundle
    kerndat: Path | None
    images: Path
    """The skeleton: of the snapshot, or a variant of it that maps nothing."""
    extents: tuple[table_format.Extent, ...]
    """What is copied before the tasks run."""


def copied_extents(path: Path, manifest: Manifest) -> tuple[table_format.Extent, ...]:
    """The extents that are not mapped; reads the table only if the manifest says that there are any."""
    if not any(v.copied_bytes for v in manifest.verdicts) and not manifest.sizes.shared_bytes:
        return ()
    extents = table_format.decode_extents(read_bounded(path / "memory.table", table_format.LIMIT))
    return tuple(e for e in extents if e.kind is not Kind.MAPPED)


@dataclass(frozen=True)
class Restored:
    """A sandbox whose worker serves, and what the engine said of its resume (None without hooks)."""

    sandbox: Sandbox
    report: Report | None


def restore(source: Source, make: MakePlaceholder, work: Path, deadline: Deadline, phases: Phases) -> Restored:
    """Make a placeholder and bring the snapshot's worker back in it.

    Raises HotstartError; ``Failed`` wraps it with the placeholder when one exists.
    """
    with Helper(thaw.HELPER, "restoring the worker") as helper:  # starts while the placeholder is made
        with phases.span("sandbox"):
            sandbox = make()
        try:
            with sandbox.control.hold():  # a capture must not give it another order before this one is answered
                order = _resume_order(source.manifest, sandbox, deadline)
                _thaw(source, sandbox, helper, order, work, deadline, phases)
                report = _await_resume(order, sandbox, deadline, phases)
        except BaseException as error:
            raise Failed(sandbox) from error
    return Restored(sandbox, report)


class Failed(Exception):
    """A restore that failed after its placeholder was made; ``__cause__`` says why."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(sandbox.name)
        self.sandbox = sandbox


def _thaw(
    source: Source,
    sandbox: Sandbox,
    helper: Helper,
    order: Order | None,
    work: Path,
    deadline: Deadline,
    phases: Phases,
) -> None:
    manifest = source.manifest
    archives = [thaw.Archive(source.path / t.path, t.target) for t in manifest.tmpfs]
    if manifest.sizes.rootfs_bytes:
        archives.insert(0, thaw.Archive(source.path / "rootfs.tar"))
    pid = sandbox.init_pid
    freezer = view.freezer_dir(pid)

    def before_resume() -> None:
        hosts = fill.tasks(freezer)
        fill.check_filters(manifest.verdicts, hosts)
        if source.extents:
            fill.fill(source.path / "memory", source.extents, hosts, deadline)

    def running() -> None:
        if order is not None:
            sandbox.control.give(order)
        sandbox.control.adopt(Adoption(new_nonce(), root_pid=ROOT_PID))

    with tempfile.TemporaryDirectory(dir=work, prefix="restore-") as logs:
        thaw.thaw(
            helper,
            pid,
            [str(d) for d in view.cgroup_dirs(pid)],
            thaw.Skeleton(
                source.images, source.path / "memory", manifest.stdio.names, archives, source.kerndat, manifest.tiles
            ),
            source.bundle,
            Path(logs),
            deadline,
            phases,
            before_resume,
            running,
        )


def _resume_order(manifest: Manifest, sandbox: Sandbox, deadline: Deadline) -> Order | None:
    """What lets the engine wake up as a copy: new identity, the canary to compare; None without hooks."""
    if manifest.engine.name == "none":
        return None
    return Order(
        Verb.RESUME,
        new_nonce(),
        restored=True,
        deadline_s=deadline.remaining(),
        identity={"hostname": sandbox.name, "worker_id": f"{sandbox.name}-{new_nonce()}", "address": sandbox.address},
        canary=_canary(manifest),
    )


def _await_resume(order: Order | None, sandbox: Sandbox, deadline: Deadline, phases: Phases) -> Report | None:
    """Wait until the worker serves: its canary was compared."""
    if order is None:
        return None
    with phases.span("resume"):
        try:
            report = sandbox.control.wait_for({State.RESUMED, State.FAILED}, order.nonce, deadline, sandbox.alive)
        except ControlError as error:
            raise HotstartError(RESUME_FAILED, f"the worker's state file is not valid: {error}") from None
    if report.state is State.FAILED:
        reason = reasons.REGISTRY.get(report.reason, RESUME_FAILED)
        raise HotstartError(reason, report.detail or "the worker gave no detail", tried="resuming the restored worker")
    _compare(order.canary, report)
    return report


def _compare(expected: Canary | None, report: Report) -> None:
    """The worker has compared the canary already; the agent does not take its word for it."""
    if expected is None:
        return
    told = report.canary.tokens if report.canary else ()
    if not told or [t.token_id for t in told] != [t.token_id for t in expected.tokens[: len(told)]]:
        raise HotstartError(CANARY_MISMATCH, "the restored worker reports other canary tokens than were recorded")


def _canary(manifest: Manifest) -> Canary | None:
    recorded = manifest.engine.canary
    if recorded is None:
        return None
    return Canary(recorded.prompt, tuple(CanaryToken(t.token_id, t.logprob) for t in recorded.tokens))
