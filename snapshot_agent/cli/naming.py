"""Names for what the user did not name, and what a mistyped name may have meant (pure)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePath

from hotstart.naming import LIMIT

_WRAPPERS = frozenset({"env", "exec", "nice", "nohup", "numactl", "stdbuf", "taskset", "time", "timeout", "chrt", "uv"})
_INTERPRETER = re.compile(r"(python|pypy)[0-9.]*|ba?sh|dash|zsh|node|ruby|perl")
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"


def suffix(random_bytes: bytes) -> str:
    """A short word of letters and digits that are hard to confuse; one character a byte."""
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in random_bytes)


def from_command(command: Sequence[str], ending: str) -> str:
    """A name that says what runs: ``vllm-k3fq`` for ``python -m vllm.entrypoints.openai.api_server …``."""
    return join(_program(command), ending)


def _program(command: Sequence[str]) -> str:
    words = list(command)
    while len(words) > 1 and PurePath(words[0]).name in _WRAPPERS:
        words.pop(0)
        while len(words) > 1 and (words[0].startswith("-") or "=" in words[0] or words[0].isdigit()):
            words.pop(0)
    program = PurePath(words[0]).name
    if not _INTERPRETER.fullmatch(program):
        return program
    for position, word in enumerate(words[1:], start=1):
        if word == "-m" and position + 1 < len(words):
            return words[position + 1].split(".")[0]
        if word == "-c":
            break
        if not word.startswith("-"):
            return PurePath(word).stem
    return program


def join(base: str, ending: str) -> str:
    """``base-ending`` with what names may not hold taken out of ``base``, cut so that the whole is a name."""
    clean = re.sub(r"[^a-z0-9._-]+", "-", base.lower()).strip("-._")
    room = LIMIT - len(ending) - 1
    return f"{clean[:room].rstrip('-._') or 'worker'}-{ending}"


def first_free(base: str, taken: Collection[str]) -> str:
    """``base`` itself, or ``base-2``, ``base-3`` … whichever is not taken."""
    if base not in taken:
        return base
    number = 2
    while join(base, str(number)) in taken:
        number += 1
    return join(base, str(number))


def numbered(base: str, count: int) -> list[str]:
    """``[base]`` for one, else ``base-1`` … ``base-count``."""
    return [base] if count == 1 else [f"{base}-{number}" for number in range(1, count + 1)]


def closest(word: str, known: Iterable[str]) -> str:
    """The one known name that ``word`` most likely meant; empty if none is near."""
    candidates = list(known)
    near = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    if near:
        return near[0]
    starts = [name for name in candidates if len(word) >= 2 and name.startswith(word)]
    return starts[0] if len(starts) == 1 else ""
