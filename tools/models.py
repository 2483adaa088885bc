"""The models of tests, demo and benchmark: Hugging Face directories in the cache, made once, without a model hub."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tools import vllm_env
from tools.cache import ROOT, Artifact, cache_root, recipe_hash
from tools.steps import Log, step

_RECIPES = ROOT / "tools" / "recipes"
_SMOLLM2 = _RECIPES / "smollm2.py"
_RANDOM = _RECIPES / "random_model.py"
_SMOLLM2_LOCK = ROOT / "tools" / "locks" / "smollm2.txt"
_QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONHASHSEED": "0"}

SMOLLM2 = "smollm2"
"""SmolLM2-135M-Instruct: real English."""
TINY2 = "tiny2"
"""Random weights, two layers: the quickest worker."""
QWEN3 = "0.6b"
"""Random weights in the shape of Qwen3 0.6B: weights should weigh."""
ALL = (SMOLLM2, TINY2, QWEN3)

_DESCRIBED = {
    SMOLLM2: "Model SmolLM2-135M-Instruct (0.3 GB)",
    TINY2: "Model of random weights, tiny (6 MB)",
    QWEN3: "Model of random weights, Qwen3 0.6B (1 GB)",
}


def directory() -> Path:
    """Where the models are, each under its name."""
    return cache_root() / "models"


def ensure(names: Iterable[str]) -> None:
    """Make the models that are not there; the vLLM environment must be.  Raises StepFailed."""
    for name in names:
        wanted = _artifact(name)
        if not wanted.ready():
            with step(_DESCRIBED[name], remedy="./dev clean and ./dev setup start from nothing") as log:
                wanted.make(_builder(name, log))
        _name(wanted, directory() / name)


def _artifact(name: str) -> Artifact:
    """The recipe of a model is the program and the packages that make it."""
    parts = [_SMOLLM2, _SMOLLM2_LOCK] if name == SMOLLM2 else [_RANDOM]
    return Artifact(f"models/{name}", recipe_hash(name, *parts, vllm_env.LOCK))


def _name(made: Artifact, link: Path) -> None:
    """Point the plain name at the artifact, by rename."""
    if link.is_symlink() and str(link.readlink()) == made.path.name:
        return
    fresh = link.with_name(f".{link.name}.link")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(made.path.name)
    fresh.rename(link)


def _builder(name: str, log: Log) -> Callable[[Path], None]:
    def build(out: Path) -> None:
        if name == SMOLLM2:
            _smollm2(out, log)
        else:
            _random(out, name, log)
        for path in out.iterdir():
            path.chmod(0o644)  # a worker need not be root

    return build


def _smollm2(out: Path, log: Log) -> None:
    packages = out / ".packages"
    uv = Path(sys.executable).with_name("uv")
    options = ["--no-deps", "--require-hashes", "--python", str(vllm_env.python()), "--target", str(packages)]
    log.run([uv, "pip", "install", "-q", *options, "-r", _SMOLLM2_LOCK])
    log.run([vllm_env.python(), _SMOLLM2, out], env={**_QUIET, "PYTHONPATH": str(packages)})
    log.run(["rm", "-rf", packages])


def _random(out: Path, name: str, log: Log) -> None:
    shape = {TINY2: "tiny", QWEN3: "0.6b"}[name]
    log.run([vllm_env.python(), _RANDOM, out, shape], env=_QUIET)
