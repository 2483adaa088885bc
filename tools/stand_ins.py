"""Small stand-ins for the GPU libraries that torch's CUDA build links, so that it loads on a machine without a GPU.

Each has the right name, symbols and symbol versions; a function that is called after all says its name and aborts.
Only for CPU test environments: nothing that has them may be called a GPU environment.  What is really there is left
alone.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.steps import Log

_ANSWERED = ("Version", "GetProperty")
"""Functions with these endings are called at import time; 0 (success, or version 0) is a fair answer without a GPU."""
_ENTRIES = ("libtorch_global_deps.so", "libtorch_python.so")
"""What ``import torch`` loads itself; all else follows from there."""
_DEATH = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((visibility("hidden"))) void stand_in_called(const char *name) {
    fprintf(stderr, "%s was called, but %s is a stand-in for machines without a GPU\\n", name, LIBRARY);
    abort();
}
"""


@dataclass(frozen=True)
class Symbol:
    """A function that a library must offer; ``version`` is empty for an unversioned one."""

    name: str
    version: str


def write(site_packages: Path, log: Log) -> list[str]:
    """Write what ``import torch`` lacks, beside torch's own libraries; returns the names.  Raises CommandFailed."""
    directory = site_packages / "torch" / "lib"
    real = {path.name for path in site_packages.glob("nvidia/*/lib/*.so*")}
    loaded, missing = _closure(directory, real)
    wanted = _wanted(loaded, missing)
    for name in missing:
        _compile(directory / name, wanted[name], log)
        log.note(f"{name}: {len(wanted[name])} functions")
    return missing


def _closure(directory: Path, real: set[str]) -> tuple[list[Path], list[str]]:
    """The libraries of ``directory`` that are loaded, and the names that neither it, ``real`` nor the system has."""
    loaded: list[Path] = []
    missing: set[str] = set()
    names = list(_ENTRIES)
    for name in names:
        path = directory / name
        if path.exists():
            loaded.append(path)
            names += [needed for needed in _needed(path) if needed not in names]
        elif name not in real and not _system_has(name):
            missing.add(name)
    return loaded, sorted(missing)


def _needed(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.+)\]", _output("readelf", "--dynamic", "--wide", library))


def _system_has(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _wanted(libraries: Iterable[Path], missing: list[str]) -> dict[str, set[Symbol]]:
    """The functions that each missing library must have: by symbol version where there is one, else any may have it."""
    undefined: set[Symbol] = set()
    defined: set[str] = set()
    owner: dict[str, str] = {}
    for library in libraries:
        undefined |= {_symbol(line) for line in _symbols("--undefined-only", library) if line.split()[-2] == "U"}
        defined |= {_symbol(line).name for line in _symbols("--defined-only", library)}
        owner |= _version_owners(_output("readelf", "--version-info", "--wide", library))
    wanted: dict[str, set[Symbol]] = {name: set() for name in missing}
    for symbol in undefined:
        if symbol.version:
            wanted.get(owner.get(symbol.version, ""), set()).add(symbol)
        elif symbol.name not in defined and missing:
            wanted[missing[0]].add(symbol)
    return wanted


def _version_owners(text: str) -> dict[str, str]:
    """Symbol version to the library that has it, out of ``readelf --version-info`` (pure)."""
    owners = {}
    library = ""
    for line in text.splitlines():
        if match := re.search(r"File: (\S+)", line):
            library = match[1]
        elif match := re.search(r"Name: (\S+) +Flags:.*Version:", line):
            owners[match[1]] = library
    return owners


def _symbols(which: str, library: Path) -> list[str]:
    return _output("nm", "--dynamic", which, library).splitlines()


def _symbol(line: str) -> Symbol:
    name, _, version = line.split()[-1].partition("@")
    return Symbol(name, version.lstrip("@"))


def _compile(target: Path, symbols: set[Symbol], log: Log) -> None:
    assembly = [".text", ".hidden stand_in_called"]
    versions: dict[str, list[str]] = defaultdict(list)
    for symbol in sorted(symbols, key=lambda each: each.name):
        assembly.append(f".globl {symbol.name}\n.type {symbol.name}, @function\n{symbol.name}:")
        if symbol.name.endswith(_ANSWERED):
            assembly.append("xorl %eax, %eax\nret")
        else:
            text = f'.pushsection .rodata.str\n1: .asciz "{symbol.name}"\n.popsection'
            assembly.append(f"leaq 1f(%rip), %rdi\njmp stand_in_called\n{text}")
        if symbol.version:
            versions[symbol.version].append(symbol.name)
    assembly.append('.section .note.GNU-stack, "", @progbits\n')
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "functions.s").write_text("\n".join(assembly))
        (work / "death.c").write_text(_DEATH)
        script = "\n".join(f"{version} {{ global: {'; '.join(names)}; }};" for version, names in versions.items())
        (work / "versions").write_text(script)
        options = [f"-Wl,-soname,{target.name}", *([f"-Wl,--version-script={work}/versions"] if versions else [])]
        sources: list[str | Path] = [f'-DLIBRARY="{target.name}"', work / "functions.s", work / "death.c"]
        log.run(["gcc", "-shared", "-fPIC", "-O1", *options, "-o", target, *sources])


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
