"""The baseline: stock ``criu dump`` and ``criu restore`` of a worker that has none of our hooks.

The sandbox, the files put back and the way CRIU is called are the same as Hotstart's, so that the difference measured
is the memory: CRIU's own images, all of them, read by CRIU.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hotstart.clock import Deadline
from hotstart.hooks.control.directory import new_nonce
from hotstart.hooks.control.protocol import Adoption
from hotstart.names import ROOT_PID
from hotstart.phases import Phases
from hotstart.snapshot_agent.capture import freeze
from hotstart.snapshot_agent.capture.rootfs import write_diff
from hotstart.snapshot_agent.capture.tmpfs import write_tmpfs
from hotstart.snapshot_agent.criu import bundle, kerndat
from hotstart.snapshot_agent.restore import thaw
from hotstart.snapshot_agent.sandbox import local, view
from hotstart.snapshot_agent.sandbox.contract import SandboxSpec
from hotstart.snapshot_agent.sandbox.helper import Helper


@dataclass(frozen=True)
class StockImage:
    """What a stock dump left on disk."""

    directory: Path
    spec: SandboxSpec
    stdio: tuple[str, str, str]
    archives: tuple[thaw.Archive, ...]

    def bytes(self) -> int:
        """Size of CRIU's images."""
        return sum(f.stat().st_size for f in (self.directory / "images").iterdir())


def dump(home: Path, name: str, directory: Path) -> StockImage:
    """``criu dump`` of the sandbox ``name`` into ``directory``; the sandbox runs on."""
    sandbox = local.load(home, name)
    images, work = directory / "images", directory / "work"
    images.mkdir(parents=True)
    work.mkdir()
    pid = sandbox.init_pid
    archives: list[thaw.Archive] = []

    def files() -> None:
        upper = view.upperdir(pid)
        if upper is not None:
            write_diff(upper, directory / "rootfs.tar", skip_mounts=view.mount_points(pid))
            archives.append(thaw.Archive(directory / "rootfs.tar"))
        for number, target in enumerate(view.tmpfs_mounts(pid)):
            path = directory / f"tmpfs-{number}.tar"
            write_tmpfs(Path(f"/proc/{pid}/root"), target, path)
            archives.append(thaw.Archive(path, target))

    criu = bundle.find(home)
    deadline = Deadline.after(300, "the stock dump")
    freeze.dump(pid, view.freezer_dir(pid), criu, images, work, kerndat.cached(home, criu), deadline, files)
    return StockImage(directory, sandbox.spec, view.stdio(pid), tuple(archives))


def restore(home: Path, image: StockImage, name: str) -> tuple[str, float]:
    """``criu restore`` into a fresh sandbox; returns its address and when it was begun (monotonic)."""
    began = time.monotonic()
    spec = SandboxSpec(**{**vars(image.spec), "name": name})
    criu = bundle.find(home)
    deadline = Deadline.after(300, "the stock restore")
    with Helper(thaw.HELPER, "restoring the stock image") as helper:
        sandbox = local.create(home, spec, placeholder=True)
        skeleton = thaw.Skeleton(
            image.directory / "images",
            image.directory / "rootfs.tar",  # no image refers to a memory file; any descriptor will do
            image.stdio,
            image.archives,
            kerndat.cached(home, criu),
            tiles=True,  # without it stock CRIU brings a worker back that dies of SIGILL on machines with AMX
        )

        def running() -> None:
            sandbox.control.adopt(Adoption(new_nonce(), root_pid=ROOT_PID))

        with tempfile.TemporaryDirectory(dir=image.directory) as work:
            thaw.thaw(
                helper,
                sandbox.init_pid,
                [str(d) for d in view.cgroup_dirs(sandbox.init_pid)],
                skeleton,
                criu,
                Path(work),
                deadline,
                Phases(),
                lambda: None,
                running,
            )
    return sandbox.address, began
