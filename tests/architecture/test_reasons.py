"""The registry of reasons is complete: every code is raised somewhere, and the page that explains them is current."""

from __future__ import annotations

import ast

from hotstart import reasons
from tests.architecture.tree import PRODUCT, modules
from tools import reasons_page

REGISTRY_FILE = "hotstart/reasons.py"


def _names() -> dict[str, str]:
    """Constant to code."""
    return {name: value.code for name, value in vars(reasons).items() if isinstance(value, reasons.Reason)}


def _mentioned() -> set[str]:
    """Constants that some module of the product names, and codes that stand in it as text (hooks report by code)."""
    found = set()
    for module in modules(*PRODUCT):
        if module.name == REGISTRY_FILE:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value.partition(":")[0])  # "code: what was found", in a worker's last words
    return found


def test_every_reason_is_used() -> None:
    mentioned = _mentioned()
    unused = sorted(code for name, code in _names().items() if name not in mentioned and code not in mentioned)
    assert not unused, "a reason that nothing gives: use it or remove it"


def test_every_reason_is_a_constant() -> None:
    assert sorted(_names().values()) == sorted(reasons.REGISTRY)


def test_the_page_is_current() -> None:
    assert reasons_page.PAGE.read_text() == reasons_page.render(), "./dev docs writes it"


def test_codes_and_texts_read_well() -> None:
    for reason in reasons.REGISTRY.values():
        assert reason.code == reason.code.lower().replace("_", "-")
        assert reason.meaning.endswith("."), reason.code
        assert not reason.remedy.endswith("."), reason.code
        assert 0 <= reason.exit_code < 256
