"""Archives made by hand, so that tests can make wrong ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from hotstart.snapshot_agent.catalog.archive import format as form
from hotstart.snapshot_agent.catalog.archive.format import BLOCK, Entry, Tree

ROOT = Entry(form.ROOT, form.DIRECTORY, mode=0o755)


def archive(
    entries: list[Entry], data: dict[bytes, bytes], *, whiteouts: tuple[bytes, ...] = (), opaque: tuple[bytes, ...] = ()
) -> bytes:
    """The entries as an archive, right or wrong; ``data`` by path."""
    tree = Tree()
    tree.whiteouts, tree.opaque = list(whiteouts), list(opaque)
    return raw(
        tree.lists(), [(form.encode(entry), data.get(entry.path, b"") if entry.segments else b"") for entry in entries]
    )


def raw(lists: bytes, members: list[tuple[bytes, bytes]]) -> bytes:
    """An archive of headers and data as they are given."""
    parts = [form.encode(form.tree_member(len(lists))), padded(lists)]
    for header, content in members:
        parts += [header, padded(content)]
    return b"".join(parts) + bytes(2 * BLOCK)


def padded(content: bytes) -> bytes:
    """Whole blocks."""
    return content + bytes(-len(content) % BLOCK)


@contextmanager
def opened(content: bytes) -> Iterator[int]:
    """A descriptor of a file that holds ``content``."""
    fd = os.memfd_create("archive")
    try:
        os.write(fd, content)
        yield fd
    finally:
        os.close(fd)
