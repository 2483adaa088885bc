"""Where CRIU is, and how it is started anywhere: through its own loader and libraries, by a directory descriptor.

Nothing of the distribution or of the container image is used, so CRIU works inside any root file system: the tree is
opened on the host, and ``/proc/self/fd/N/…`` stays valid after setns(mnt) because a magic link carries its own mount.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hotstart.errors import HotstartError
from hotstart.names import CRIU_ENV
from hotstart.reasons import CRIU_MISSING, CRIU_UNUSABLE

MINIMUM = (4, 2)
PRELOAD = "hotstart-preload.so"
"""Built from preload.c into the tree when CRIU is set up."""
_LOADERS = (
    "lib64/ld-linux-x86-64.so.2",
    "usr/lib64/ld-linux-x86-64.so.2",
    "lib/ld-linux-aarch64.so.1",
    "usr/lib/ld-linux-aarch64.so.1",
)
_BINARIES = ("usr/sbin/criu", "usr/bin/criu", "sbin/criu")
_LIBRARIES = (
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
)


@dataclass(frozen=True)
class Bundle:
    """A directory tree with CRIU in it; all paths are relative to ``root``."""

    root: Path
    loader: str
    binary: str
    libraries: tuple[str, ...]
    preload: bool
    """Whether preload.c is there."""

    def command(self, base: str) -> list[str]:
        """The argv that starts CRIU when the tree is reachable at ``base`` (a path or ``/proc/self/fd/N``)."""
        path = ":".join(f"{base}/{d}" for d in self.libraries)
        preload = ["--preload", f"{base}/{PRELOAD}"] if self.preload else []
        return [f"{base}/{self.loader}", *preload, "--library-path", path, f"{base}/{self.binary}"]

    def environment(self, *, tiles: bool = False) -> dict[str, str]:
        """The environment of a CRIU process: nothing of the caller's.

        ``tiles`` gives the tree that CRIU restores the permission to use AMX tile registers (preload.c).
        """
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"} | ({"HOTSTART_XCOMP_PERM": "1"} if tiles else {})

    def version(self) -> str:
        """CRIU's own word, such as ``4.2.1``; raises ``criu-unusable``."""
        try:
            done = subprocess.run(
                [*self.command(str(self.root)), "--version"], capture_output=True, text=True, timeout=20, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise HotstartError(CRIU_UNUSABLE, f"{self.root} does not start: {error}") from None
        match = re.search(r"Version:\s*(\S+)", done.stdout)
        if match is None:
            raise HotstartError(CRIU_UNUSABLE, f"{self.root} tells no version")
        numbers = tuple(int(n) for n in re.findall(r"\d+", match[1])[:2])
        if numbers < MINIMUM:
            raise HotstartError(CRIU_UNUSABLE, f"{self.root} holds CRIU {match[1]}, 4.2 or newer is needed")
        return match[1]

    def check(self) -> str:
        """``criu check``: empty when good, else CRIU's first error line."""
        done = subprocess.run(
            [*self.command(str(self.root)), "check"], capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode == 0:
            return ""
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "Error" in line]
        return errors[0].strip() if errors else f"criu check ended with status {done.returncode}"


def find(home: Path) -> Bundle:
    """The tree named by HOTSTART_CRIU, else ``<home>/criu/tree``; raises ``criu-missing``."""
    named = os.environ.get(CRIU_ENV)
    root = Path(named) if named else home / "criu" / "tree"
    return locate(root)


def locate(root: Path) -> Bundle:
    """The bundle in ``root``; raises ``criu-missing``."""
    loader = next((p for p in _LOADERS if (root / p).exists()), None)
    binary = next((p for p in _BINARIES if (root / p).exists()), None)
    if loader is None or binary is None:
        raise HotstartError(CRIU_MISSING, f"there is no CRIU with its loader in {root}")
    libraries = tuple(p for p in _LIBRARIES if (root / p).is_dir())
    return Bundle(root, loader, binary, libraries, (root / PRELOAD).exists())
