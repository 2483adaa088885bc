"""Size and form of the source: what a reader can hold in the head, and where words may be said."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.tree import EVERYTHING, PRODUCT, Module, modules

MODULE_LINES = 400
FUNCTION_LINES = 60
NESTING = 5
DRAWERS = {"utils", "util", "helpers", "common", "types", "misc", "manager"}
SPEAKERS = ("snapshot_agent/cli/", "tools/", "benchmarks/")
"""Only what a person starts may print."""

TABLES = {"hotstart/reasons.py"}
"""Not read from top to bottom: as long as they have to be."""
LONGER: dict[str, int] = {}
"""Exceptions, ``path`` or ``path:function`` to its lines; may only shrink (the last test sees to it)."""


def _functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _lengths() -> dict[str, int]:
    lengths = {}
    for module in modules(*EVERYTHING):
        lengths[module.name] = module.text.count("\n")
        for function in _functions(module):
            lengths[f"{module.name}:{function.name}"] = (function.end_lineno or 0) - function.lineno + 1
    return lengths


def test_modules_and_functions_are_short() -> None:
    limits = {True: FUNCTION_LINES, False: MODULE_LINES}
    too_long = {
        name: lines
        for name, lines in _lengths().items()
        if name not in TABLES and lines > LONGER.get(name, limits[":" in name])
    }
    assert not too_long, "split these, a reason to exist each"


def test_exceptions_only_shrink() -> None:
    lengths = _lengths()
    loose = {name: lengths.get(name, 0) for name, allowed in LONGER.items() if lengths.get(name, 0) < allowed}
    assert not loose, "shorter than LONGER says: lower or remove the entries"


def _depth(node: ast.AST, depth: int = 0) -> int:
    nests = isinstance(node, ast.For | ast.AsyncFor | ast.While | ast.If | ast.With | ast.AsyncWith | ast.Try)
    below = depth + nests
    deepest = below
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        chained = isinstance(node, ast.If) and node.orelse == [child] and isinstance(child, ast.If)  # elif
        deepest = max(deepest, _depth(child, depth if chained else below))
    return deepest


def test_nesting_is_shallow() -> None:
    deep = {
        f"{module.name}:{function.name}": depth
        for module in modules(*EVERYTHING)
        for function in _functions(module)
        if (depth := max((_depth(statement) for statement in function.body), default=0)) > NESTING
    }
    assert not deep, "turn the condition around, or name the inner part"


def test_no_module_is_a_drawer() -> None:
    drawers = [module.name for module in modules(*EVERYTHING) if DRAWERS & {module.path.stem, module.path.parent.name}]
    assert not drawers, "a name that fits everything says nothing"


@pytest.mark.parametrize("module", modules(*EVERYTHING), ids=lambda module: module.name)
def test_module_says_why_it_exists(module: Module) -> None:
    text = ast.get_docstring(module.tree)
    assert text, "the first line of a module says its one reason to exist"
    assert len(text.splitlines()[0]) > 10


def test_public_functions_and_classes_of_the_product_are_documented() -> None:
    bare = [
        f"{module.name}:{node.name}"
        for module in modules(*PRODUCT)
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]
    assert not bare, "what, units, errors raised"


def _prints(node: ast.AST) -> Iterator[int]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) and child.name == "main":
            continue  # a program's own
        match child:
            case ast.Call(func=ast.Name(id="print"), keywords=keywords) if all(word.arg != "file" for word in keywords):
                yield child.lineno
        yield from _prints(child)


def test_only_what_a_person_starts_prints() -> None:
    printing = [
        f"{module.name}:{line}"
        for module in modules(*EVERYTHING)
        if not module.name.startswith(SPEAKERS)
        for line in _prints(module.tree)
    ]
    assert not printing, "return values or raise; the command line speaks"
