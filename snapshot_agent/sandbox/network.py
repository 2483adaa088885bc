"""A sandbox's link: a veth pair with point-to-point addresses, made by rtnetlink messages of our own.

Whoever makes the pair called after an address owns the address: the kernel refuses a second one of that name.  So
allocation needs no lock and no list, it is free of races between processes and homes, and an address comes back with
the death of its network namespace.  Runs in the shim: ``_socket``, because ``socket`` costs 8 ms to import.
"""

from __future__ import annotations

import _socket
import errno
import os
import struct

from hotstart.linux.syscalls import CLONE_NEWNET, unshare

TYPE_CHECKING = False  # the real one comes with typing, which costs 5 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LINK_SIZE = 4
"""Addresses of a /30: network, host end, sandbox end, broadcast."""
INNER = "eth0"
_NEWLINK, _DELLINK, _GETLINK, _NEWADDR, _GETADDR, _NEWROUTE = 16, 17, 18, 20, 22, 24
_ERROR, _DONE = 2, 3
_REQUEST, _ACK, _EXCL, _CREATE, _DUMP = 0x1, 0x4, 0x200, 0x400, 0x300
_IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_AF_SPEC, _IFLA_NET_NS_FD = 3, 18, 26, 28
_INFO_KIND, _INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_OIF, _RTA_GATEWAY = 4, 5
_INET6_ADDR_GEN_MODE, _MODE_NONE = 8, 1
_IFF_UP = 1
_LOOPBACK = 1
"""Index of ``lo`` in every new network namespace."""
_ROUTE_MAIN, _ROUTE_BOOT, _ROUTE_UNICAST = 254, 3, 1


class Link:
    """One sandbox's link: addresses, and the host end's name and index."""

    __slots__ = ("address", "gateway", "index", "name")

    def __init__(self, name: str, index: int, gateway: str, address: str) -> None:
        self.name = name
        self.index = index
        self.gateway = gateway
        self.address = address


class NoAddressLeft(Exception):
    """Every link of the sandbox network is taken."""


def link_name(host: int) -> str:
    """Name of the host end whose address is ``host`` (pure; at most 15 characters)."""
    return f"hs{host:08x}"


def candidates(base: int, size: int, names: Iterable[str], addresses: Iterable[tuple[int, int]]) -> Iterator[int]:
    """First address of each /30 in the network of ``size`` addresses from ``base`` on that nobody uses (pure).

    ``names``: interfaces there are; ``addresses``: (first, last) of the networks that other interfaces are in.
    """
    taken, foreign = set(names), list(addresses)
    for first in range(base, base + size - LINK_SIZE + 1, LINK_SIZE):
        last = first + LINK_SIZE - 1
        if link_name(first + 1) not in taken and not any(low <= last and first <= high for low, high in foreign):
            yield first


def create(base: int, size: int) -> Link:
    """Put the calling process into a network namespace of its own and link it with the present one.

    Raises NoAddressLeft, OSError.
    """
    with Netlink() as host:
        unshare(CLONE_NEWNET)
        namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            first = _claim(host, namespace, base, size)
        finally:
            os.close(namespace)
        outer, inner = dotted(first + 1), dotted(first + 2)
        index = host.index(link_name(first + 1))
        _address(host, index, outer, inner)
        _up(host, index)
    with Netlink() as inside:
        _up(inside, _LOOPBACK)
        eth0 = inside.index(INNER)
        _address(inside, eth0, inner, outer)
        _up(inside, eth0)
        _default_route(inside, eth0, outer)
    return Link(link_name(first + 1), index, outer, inner)


def remove(name: str, index: int) -> None:
    """Remove the host end of a link, and its peer with it, if it is still the same interface; raises OSError."""
    with Netlink() as host:
        try:
            if host.index(name) == index:
                host.call(_DELLINK, 0, _link_header(index))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise


def dotted(address: int) -> str:
    """An IPv4 address as people write it (pure)."""
    return ".".join(str(byte) for byte in address.to_bytes(4, "big"))


class Netlink:
    """An rtnetlink socket of the network namespace in which it is made."""

    def __init__(self) -> None:
        self._socket = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, 0)
        self._sequence = 0

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()

    def call(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        """One request; the bodies of the answers.  Raises OSError."""
        self._sequence += 1
        flags |= _REQUEST if flags & _DUMP == _DUMP else _REQUEST | _ACK
        self._socket.send(struct.pack("=IHHII", 16 + len(body), kind, flags, self._sequence, 0) + body)
        answers: list[bytes] = []
        while True:
            data = self._socket.recv(1 << 16)
            while data:
                length, kind_of, _flags, sequence, _port = struct.unpack_from("=IHHII", data)
                message, data = data[16:length], data[(length + 3) & ~3 :]
                if sequence != self._sequence:
                    continue
                if kind_of == _DONE:
                    return answers
                if kind_of == _ERROR:
                    number = -struct.unpack_from("=i", message)[0]
                    if number:
                        raise OSError(number, f"rtnetlink request {kind}: {os.strerror(number)}")
                    return answers
                answers.append(message)

    def index(self, name: str) -> int:
        """Index of an interface; raises OSError(ENODEV)."""
        answer = self.call(_GETLINK, 0, _link_header(0) + _text(_IFLA_IFNAME, name))[0]
        return int(struct.unpack_from("=BxHiII", answer)[2])

    def names(self) -> list[str]:
        """All interfaces."""
        found = []
        for answer in self.call(_GETLINK, _DUMP, _link_header(0)):
            name = attributes(answer[16:]).get(_IFLA_IFNAME, b"")
            found.append(name.rstrip(b"\0").decode(errors="replace"))
        return found

    def networks(self) -> list[tuple[int, int]]:
        """First and last IPv4 address of the network behind each address of each interface."""
        found = []
        for answer in self.call(_GETADDR, _DUMP, struct.pack("=BBBBi", _socket.AF_INET, 0, 0, 0, 0)):
            prefix = answer[1]
            address = int.from_bytes(attributes(answer[8:]).get(_IFA_ADDRESS, bytes(4)), "big")
            size = 1 << (32 - prefix)
            found.append((address & -size, address | (size - 1)))
        return found


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes of an rtnetlink message (pure)."""
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[4:length]
        data = data[(length + 3) & ~3 :]
    return found


def _claim(host: Netlink, namespace: int, base: int, size: int) -> int:
    """Make the first veth pair whose name is free; the first address of its /30."""
    for first in candidates(base, size, host.names(), host.networks()):
        peer = _link_header(0) + _text(_IFLA_IFNAME, INNER) + _number(_IFLA_NET_NS_FD, namespace)
        info = _text(_INFO_KIND, "veth") + _attribute(_INFO_DATA, _attribute(_VETH_INFO_PEER, peer))
        body = _link_header(0) + _text(_IFLA_IFNAME, link_name(first + 1)) + _attribute(_IFLA_LINKINFO, info)
        try:
            host.call(_NEWLINK, _CREATE | _EXCL, body)
        except OSError as error:
            if error.errno == errno.EEXIST:
                continue  # another sandbox was quicker
            raise
        return first
    raise NoAddressLeft


def _address(netlink: Netlink, index: int, local: str, peer: str) -> None:
    body = struct.pack("=BBBBi", _socket.AF_INET, 32, 0, 0, index)
    body += _attribute(_IFA_LOCAL, _socket.inet_aton(local)) + _attribute(_IFA_ADDRESS, _socket.inet_aton(peer))
    netlink.call(_NEWADDR, _CREATE | _EXCL, body)


def _up(netlink: Netlink, index: int) -> None:
    if index != _LOOPBACK:
        # No link-local IPv6 address: nobody asked for it, and its detection of duplicates sends packets for seconds.
        mode = _attribute(_socket.AF_INET6, _attribute(_INET6_ADDR_GEN_MODE, bytes([_MODE_NONE])))
        try:
            netlink.call(_NEWLINK, 0, _link_header(index) + _attribute(_IFLA_AF_SPEC, mode))
        except OSError:
            pass  # a kernel without IPv6
    netlink.call(_NEWLINK, 0, struct.pack("=BxHiII", 0, 0, index, _IFF_UP, _IFF_UP))


def _default_route(netlink: Netlink, index: int, gateway: str) -> None:
    body = struct.pack("=BBBBBBBBI", _socket.AF_INET, 0, 0, 0, _ROUTE_MAIN, _ROUTE_BOOT, 0, _ROUTE_UNICAST, 0)
    body += _attribute(_RTA_GATEWAY, _socket.inet_aton(gateway)) + _number(_RTA_OIF, index)
    netlink.call(_NEWROUTE, _CREATE | _EXCL, body)


def _link_header(index: int) -> bytes:
    return struct.pack("=BxHiII", 0, 0, index, 0, 0)


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value))
