"""What would make a capture or a restore fail here: facts are gathered, the rules judge them, nothing is changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from hotstart.durable import read_bounded, write_file
from hotstart.errors import HotstartError
from hotstart.findings import Finding
from hotstart.snapshot_agent.catalog.manifest import Facts, Manifest, SandboxEntry
from hotstart.snapshot_agent.criu.bundle import Bundle
from hotstart.snapshot_agent.preflight import files, rules
from hotstart.snapshot_agent.preflight.files import Place
from hotstart.snapshot_agent.preflight.machine import machine, room
from hotstart.snapshot_agent.sandbox import view
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec

_VERSION_FILE = "criu-version.json"


def check_capture(init_pid: int, store: Path, *, kv_bytes: int = 0) -> list[Finding]:
    """What speaks against capturing the sandbox with supervisor ``init_pid`` into ``store``; the worker is only read.

    ``kv_bytes`` is the KV cache that the engine will release before.  Raises ``sandbox-dead``,
    ``not-a-child-of-supervisor``.
    """
    from hotstart import audit  # here: a restore, which must be quick, needs neither
    from hotstart.snapshot_agent.preflight import worker

    found = worker.gather(init_pid)
    findings = audit.judge(audit.gather(found.pids, reference=init_pid))
    findings += rules.capture_findings(found)
    findings += rules.restored(files.mapped(found.pids).paths, os.path.realpath(store))
    place = room(store)
    content = worker.content(init_pid, found.pids, exact=False)
    if rules.capture_need(content, kv_bytes) > place.disk_bytes:
        content = worker.content(init_pid, found.pids, exact=True)
    return findings + rules.capture_room(content, kv_bytes, place)


def capture_facts(init_pid: int, spec: SandboxSpec, criu: str) -> Facts:
    """The facts that a snapshot of this sandbox carries: this machine, and the files that its worker has from outside.

    ``criu`` is the version that dumps.  Raises ``sandbox-dead``.
    """
    pids = [task.pid for task in view.tree(init_pid)]
    mapped = files.mapped(pids)
    paths = mapped.paths | files.opened(pids)
    outside = files.not_carried(paths, view.upperdir(init_pid), view.tmpfs_mounts(init_pid))
    return _facts(criu, outside, spec, executable=mapped.anonymous_executable)


def check_restore(
    manifest: Manifest, store: Path, *, criu: str, preload: bool = True, copies: int = 1
) -> list[Finding]:
    """What speaks against ``copies`` of a snapshot on this machine, with sandboxes and snapshots below ``store``.

    ``criu`` is the version that restores here (see ``criu_version``), ``preload`` whether its tree has preload.c.
    """
    findings = rules.compare(manifest.facts, _facts_here(manifest.facts, manifest.sandbox, criu))
    if manifest.tiles and not preload:
        findings.append(rules.no_preload())
    findings += rules.missing_volumes(v.source for v in manifest.sandbox.volumes if not os.path.lexists(v.source))
    return findings + rules.restore_room(manifest.sizes, manifest.verdicts, room(store), copies=copies)


def criu_version(bundle: Bundle, home: Path) -> str:
    """The version of a CRIU tree; asked of CRIU once, then remembered in ``home`` while its binary is the same.

    Raises ``criu-unusable``.
    """
    status = (bundle.root / bundle.binary).stat()
    identity = [str(bundle.root), status.st_size, status.st_mtime_ns]
    remembered = home / _VERSION_FILE
    try:
        entry = json.loads(read_bounded(remembered, 4096))
        if entry["identity"] == identity:
            return str(entry["version"])
    except (OSError, HotstartError, ValueError, KeyError, TypeError):
        pass  # not there yet, or not ours: ask again
    version = bundle.version()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(remembered, json.dumps({"identity": identity, "version": version}).encode(), durable=False)
    except OSError:
        pass  # it is asked again next time
    return version


def _facts_here(snapshot: Facts, sandbox: SandboxEntry, criu: str) -> Facts:
    paths = (file.path for file in snapshot.files)
    return _facts(criu, paths, sandbox, executable=snapshot.executable_memory)


def _facts(criu: str, paths: Iterable[str], sandbox: SandboxSpec | SandboxEntry, *, executable: bool) -> Facts:
    """This machine, and the files at ``paths`` as a sandbox finds them."""
    places = [Place("/", sandbox.rootfs), *(Place(volume.target, volume.source) for volume in sandbox.volumes)]
    here = machine()
    return Facts(
        kernel=here.kernel,
        machine=here.machine,
        cpu_model=here.cpu_model,
        cpu_flags=sorted(here.cpu_flags),
        xsave_bytes=here.xsave_bytes,
        criu=criu,
        cgroup=here.cgroup,
        libc=here.libc,
        page_size=here.page_size,
        lsm=list(here.lsm),
        executable_memory=executable,
        files=files.identities(paths, places),
    )
