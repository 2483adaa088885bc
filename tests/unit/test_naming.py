"""Names that two rooms share are one harmless path component."""

from __future__ import annotations

import pytest

from hotstart import naming
from hotstart.errors import HotstartError


@pytest.mark.parametrize("name", ["a", "0", "vllm-k3fq", "a.b_c-d", "x" * 63, "9.9"])
def test_good_names(name: str) -> None:
    assert naming.check(name, "snapshot") == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "-dash", "_x", "A", "a/b", "a b", "ä", "a\n", "a\0", "x" * 64, "²", "a\udcff", "../a"],
)
def test_bad_names(name: str) -> None:
    with pytest.raises(HotstartError) as caught:
        naming.check(name, "snapshot")
    assert caught.value.reason.code == "bad-name"
    assert "\n" not in caught.value.line()
