"""The injection directory: what sandboxes see of Hotstart, and nothing of it under a generic name.

It holds the package ``hotstart`` (ground floor and hooks, as real files with bytecode) and metadata whose entry point
makes vLLM find the plugin in a virtual environment that does not know Hotstart.  A worker's working directory may hold
``hooks.py``: nothing here is called so.
"""

from __future__ import annotations

import hashlib
import os
import py_compile
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import hotstart
from hotstart.durable import rename_noreplace

INJECT = "inject"
_PACKAGE = Path(hotstart.__file__).resolve().parent
_LEFT_OUT = ("snapshot_agent", "__pycache__")
_ENTRY_POINTS = "[vllm.general_plugins]\nhotstart = hotstart.hooks.engines.vllm.plugin:register\n"


def site(home: Path) -> Path:
    """The injection directory of this version below ``home``; made at the first call.

    Its name carries a digest of the sources' sizes and times: an edited work tree gets a new one.  Raises OSError.
    """
    files = list(_sources(_PACKAGE, ""))
    target = home / INJECT / f"{hotstart.__version__}-{_digest(files)}"
    if target.is_dir():
        return target
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    staging = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        _fill(staging, files)
        rename_noreplace(staging, target)
    except FileExistsError:
        pass  # somebody else was as quick
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _sources(directory: Path, prefix: str) -> Iterator[tuple[str, os.stat_result, Path]]:
    """Relative name, status and path of each file; links (hooks) are followed."""
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.name in _LEFT_OUT:
            continue
        if entry.is_dir():
            yield from _sources(Path(entry.path), f"{prefix}{entry.name}/")
        elif entry.name.endswith((".py", ".typed")):
            yield f"{prefix}{entry.name}", entry.stat(), Path(entry.path)


def _digest(files: list[tuple[str, os.stat_result, Path]]) -> str:
    words = [f"{name} {status.st_size} {status.st_mtime_ns}" for name, status, _path in files]
    return hashlib.sha256("\n".join([sys.version, *words]).encode()).hexdigest()[:12]


def _fill(staging: Path, files: list[tuple[str, os.stat_result, Path]]) -> None:
    metadata = staging / f"hotstart_inject-{hotstart.__version__}.dist-info"
    metadata.mkdir(mode=0o755, parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: hotstart-inject\nVersion: {hotstart.__version__}\n"
    )
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS)
    for name, _status, path in files:
        target = staging / "hotstart" / name
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        if target.suffix == ".py":
            # Never checked against the source again: both are read-only from here on.
            py_compile.compile(
                str(target),
                dfile=f"/run/hotstart/site/hotstart/{name}",
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
