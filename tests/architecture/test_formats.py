"""The pages of docs/formats say what the code writes."""

import re
import struct
from pathlib import Path

from hotstart.snapshot_agent.memory import format as table

_TYPES = {"8 bytes": "8s", "32 bytes": "32s", "u32": "I", "u64": "Q"}
_PAGE = Path(__file__).parents[2] / "docs" / "formats" / "memory-file.md"


def _structs() -> list[struct.Struct]:
    """One struct per table of fields in the page."""
    found: list[list[str]] = []
    for line in _PAGE.read_text().splitlines():
        if line.startswith("| field |"):
            found.append([])
        elif found and (row := re.fullmatch(r"\| (\w+) \| ([^|]+) \| .* \|", line)):
            found[-1].append(_TYPES[row[2]])
    return [struct.Struct("<" + "".join(types)) for types in found]


def test_the_memory_table_is_documented_byte_by_byte() -> None:
    assert [s.format for s in _structs()] == [table.HEADER.format, table.EXTENT.format, table.BLOCK.format]


def test_its_constants_are_documented() -> None:
    page = _PAGE.read_text()
    assert table.MAGIC.decode() in page
    assert f"| block_bytes | u32 | {table.BLOCK_BYTES} |" in page
    assert [f"{k.value} {k.name.lower()}" in page for k in table.Kind] == [True, True, True]
