"""What travels between maker and shim."""

from __future__ import annotations

import pytest

from hotstart.snapshot_agent.sandbox import order
from hotstart.snapshot_agent.sandbox.order import Order

ORDER = Order(
    name="n",
    directory="/d",
    rootfs="/",
    cgroups=["/c"],
    unified="",
    base=1,
    size=4,
    steps=[("file", "/x", b"\0\xff", 0o600)],
    argv=["python"],
    boot="b",
)


def test_an_order_arrives_unchanged() -> None:
    again = order.unpack(order.pack(ORDER))
    assert {name: getattr(again, name) for name in Order.__slots__} == {
        name: getattr(ORDER, name) for name in Order.__slots__
    }


@pytest.mark.parametrize("cut", [0, 1, 20, -1])
def test_an_order_that_was_cut_off_is_noticed(cut: int) -> None:
    with pytest.raises((ValueError, EOFError, TypeError)):
        order.unpack(order.pack(ORDER)[:cut])
