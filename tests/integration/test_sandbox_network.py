"""Links of sandboxes: an address each, the same port in all of them, given back when they end."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import urllib.request

import pytest

from hotstart.errors import HotstartError
from hotstart.names import SUBNET_ENV
from hotstart.reasons import ADDRESSES_EXHAUSTED, NETWORK_UNUSABLE
from hotstart.snapshot_agent.sandbox import local, network
from hotstart.snapshot_agent.sandbox.local import LocalSandbox
from tests.conftest import Sandboxes, eventually

pytestmark = pytest.mark.root
SMALL = "10.254.253.0/29"
"""Room for two links; no other test uses it."""
LOOPBACK, IFA_LOCAL, RTM_NEWADDR, RTM_DELADDR, NLM_F_CREATE = 1, 2, 20, 21, 0x400
SERVER = """
import http.server, socket
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(socket.gethostname().encode())
    def log_message(self, *words): pass
http.server.HTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""


def _links() -> set[str]:
    return {name for _index, name in socket.if_nameindex() if name.startswith("hs")}


def _ask(box: LocalSandbox) -> str:
    with urllib.request.urlopen(f"http://{box.address}:8000/", timeout=5) as answer:
        return str(answer.read().decode())


def _answers(box: LocalSandbox) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((box.address, 8000)) == 0


def test_the_same_port_at_several_addresses(sandboxes: Sandboxes) -> None:
    boxes = [sandboxes.run(sys.executable, "-c", SERVER) for _ in range(2)]
    eventually(lambda: all(_answers(box) for box in boxes))
    assert [_ask(box) for box in boxes] == [box.name for box in boxes]
    assert boxes[0].address != boxes[1].address


def test_inside_there_are_loopback_and_eth0_and_a_way_to_the_host(sandboxes: Sandboxes) -> None:
    with socket.create_server(("0.0.0.0", 0)) as host:
        host.settimeout(10)
        port = host.getsockname()[1]
        code = (
            "import json, socket, struct\n"
            "server = socket.create_server(('127.0.0.1', 0)); a = socket.create_connection(server.getsockname())\n"
            "routes = [line.split() for line in open('/proc/net/route')][1:]\n"
            "gateway = next(r[2] for r in routes if r[1] == '00000000')\n"
            "gateway = socket.inet_ntoa(struct.pack('=I', int(gateway, 16)))\n"
            f"b = socket.create_connection((gateway, {port}))\n"
            "print(json.dumps([sorted(n for _, n in socket.if_nameindex()), gateway]), flush=True)\n"
        )
        box = sandboxes.run(sys.executable, "-c", code)
        peer = host.accept()[1][0]
        sandboxes.wait(box)
    assert peer == box.address
    assert box.live is not None
    assert json.loads(sandboxes.log(box)) == [["eth0", "lo"], box.live.gateway]


def test_the_link_goes_with_the_sandbox_and_the_address_comes_back(
    sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SUBNET_ENV, SMALL)
    first, second = sandboxes.placeholder("sleep", "1"), sandboxes.placeholder("sleep", "1")
    assert (first.address, second.address) == ("10.254.253.2", "10.254.253.6")
    assert {"hs0afefd01", "hs0afefd05"} <= _links()
    with pytest.raises(HotstartError) as caught:
        sandboxes.placeholder("sleep", "1")
    assert caught.value.reason is ADDRESSES_EXHAUSTED
    assert len(local.list_all(sandboxes.home)) == 2
    local.destroy(sandboxes.home, first.name)
    assert "hs0afefd01" not in _links()
    assert sandboxes.placeholder("sleep", "1").address == "10.254.253.2"


def test_two_who_want_the_last_address_at_once(sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUBNET_ENV, SMALL)
    made: list[str] = []
    refused: list[HotstartError] = []

    def one() -> None:
        try:
            made.append(sandboxes.placeholder("sleep", "1").address)
        except HotstartError as error:
            refused.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == ["10.254.253.2", "10.254.253.6"]
    assert [error.reason for error in refused] == [ADDRESSES_EXHAUSTED] * 2
    assert len(local.list_all(sandboxes.home)) == 2


def test_networks_of_others_are_left_alone(sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUBNET_ENV, SMALL)
    body = struct.pack("=BBBBiHH4s", socket.AF_INET, 32, 0, 0, LOOPBACK, 8, IFA_LOCAL, socket.inet_aton("10.254.253.3"))
    with network.Netlink() as netlink:
        netlink.call(RTM_NEWADDR, NLM_F_CREATE, body)
        try:
            assert sandboxes.placeholder("sleep", "1").address == "10.254.253.6"
        finally:
            netlink.call(RTM_DELADDR, 0, body)


@pytest.mark.parametrize("text", ["10.0.0.0/8", "not a network", "10.0.0.1/24", "fd00::/64", "10.0.0.0/31"])
def test_a_network_that_cannot_be_used(sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(SUBNET_ENV, text)
    with pytest.raises(HotstartError) as caught:
        sandboxes.placeholder("sleep", "1")
    assert caught.value.reason is NETWORK_UNUSABLE
    assert local.list_all(sandboxes.home) == []
