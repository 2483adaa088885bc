"""The cache of what the set-up makes: an artifact is a directory named by the hash of its recipe, whole or absent."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The work tree."""
STAMP = ".hotstart-recipe"


def cache_root() -> Path:
    """HOTSTART_CACHE as ./dev exports it; the same default when a tool is run without ./dev."""
    if named := os.environ.get("HOTSTART_CACHE"):
        return Path(named)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "hotstart"
    return Path("/var/cache/hotstart") if os.geteuid() == 0 else Path.home() / ".cache" / "hotstart"


def recipe_hash(*parts: str | bytes | Path) -> str:
    """Hash of everything that decides what an artifact will be: texts, and files by content."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def python_tag() -> str:
    """Interpreter and machine that a virtual environment is bound to."""
    return f"{sys.implementation.cache_tag} {platform.machine()} {sys.base_prefix}"


@dataclass(frozen=True)
class Artifact:
    """A directory in the cache; its name may hold a ``/``."""

    name: str
    recipe: str

    @property
    def path(self) -> Path:
        """Where it is, or will be."""
        return cache_root() / f"{self.name}-{self.recipe[:12]}"

    def ready(self) -> bool:
        """True if it is there, whole."""
        try:
            return (self.path / STAMP).read_text() == self.recipe
        except OSError:
            return False

    def make(self, build: Callable[[Path], None]) -> None:
        """Let ``build`` fill a temporary directory, then put it in place by one rename; nothing is left on failure.

        A second process that wants the same artifact waits, and then finds it.
        """
        parent, short = self.path.parent, self.path.name
        parent.mkdir(parents=True, exist_ok=True)
        with _locked(parent / f".{short}.lock"):
            if self.ready():
                return
            staging = Path(tempfile.mkdtemp(prefix=f".{short}-", dir=parent))
            try:
                staging.chmod(0o755)
                build(staging)
                (staging / STAMP).write_text(self.recipe)
                shutil.rmtree(self.path, ignore_errors=True)  # without its stamp it is somebody's leftover
                staging.rename(self.path)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
