"""Everything below Python that tests, demo and benchmark need, brought up in order; quick when it is all there."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools import criu_tree, models, vllm_env
from tools.steps import CommandFailed, StepFailed, step

# The names are the product's (hotstart.names) and the benchmarks'; tools import neither.
CRIU_ENV = "HOTSTART_CRIU"
VLLM_PYTHON_ENV = "HOTSTART_VLLM_PYTHON"
MODELS_ENV = "HOTSTART_MODELS"
_DEFAULT_HOME_ENV = "HOTSTART_HOME"
_DEFAULT_HOME = "/var/lib/hotstart"


@dataclass(frozen=True)
class Package:
    """A Debian package, and what shows that its content is there."""

    name: str
    paths: tuple[str, ...] = ()
    command: str = ""

    def present(self) -> bool:
        """True if there is nothing to install."""
        if self.command:
            return shutil.which(self.command) is not None
        return any(path.exists() for pattern in self.paths for path in Path("/").glob(pattern.lstrip("/")))


VLLM_PACKAGES = (
    Package("libnuma1", paths=("/usr/lib/*/libnuma.so.1",)),
    # vLLM compiles small functions at the first request that wants log-probabilities, and dies if it cannot.
    Package("g++", command="g++"),
    Package(f"python3.{sys.version_info.minor}-dev", paths=(f"{sysconfig.get_path('include')}/Python.h",)),
)
TEST_PACKAGES = (
    Package("golang-go", command="go"),
    Package("libjemalloc2", paths=("/usr/lib/*/libjemalloc.so.2",)),
)


def environment() -> dict[str, str]:
    """The variables that point at what set-up has made; those that are set already win."""
    wanted = {
        CRIU_ENV: criu_tree.tree(),
        VLLM_PYTHON_ENV: vllm_env.python(),
        MODELS_ENV: models.directory(),
    }
    return {name: os.environ.get(name) or str(path) for name, path in wanted.items()}


def found() -> dict[str, str]:
    """The part of ``environment`` that points at something: for a pytest that was started by hand."""
    return {name: value for name, value in environment().items() if Path(value).exists()}


def ensure(*, vllm: bool = False, model_names: Iterable[str] = (), tests: bool = False) -> None:
    """Bring up CRIU, and on request vLLM, models and what the tests want.  Raises StepFailed."""
    if tests:
        _packages("Debian packages for tests", TEST_PACKAGES)
    if CRIU_ENV not in os.environ:
        criu_tree.ensure()
        _offer_criu()
    names = list(model_names)
    if (vllm or names) and VLLM_PYTHON_ENV not in os.environ:
        _packages("Debian packages for vLLM", VLLM_PACKAGES)
        vllm_env.ensure()
    if names and MODELS_ENV not in os.environ:
        models.ensure(names)


def _packages(title: str, wanted: Iterable[Package]) -> None:
    missing = [package.name for package in wanted if not package.present()]
    if not missing:
        return
    title = f"{title} ({' '.join(missing)})"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise StepFailed(title, "only root installs", f"run apt-get install {' '.join(missing)} as root")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300", "--no-install-recommends", "install", *missing]
    with step(title, remedy="see whether apt-get update works on this machine") as log:
        try:
            log.run(install, env=quiet)
        except CommandFailed:  # the lists are old, or there are none
            log.run(["apt-get", "-q", "update"])
            log.run(install, env=quiet)


def _offer_criu() -> None:
    """Let plain ``hotstart`` find the tree where it looks first, unless somebody has put one there."""
    home = Path(os.environ.get(_DEFAULT_HOME_ENV) or _DEFAULT_HOME)
    link = home / "criu" / "tree"
    if os.geteuid() != 0 or (link.exists() and not link.is_symlink()):
        return
    if link.is_symlink() and link.readlink() == criu_tree.tree():
        return
    link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.chmod(0o700)
    link.unlink(missing_ok=True)
    link.symlink_to(criu_tree.tree())
