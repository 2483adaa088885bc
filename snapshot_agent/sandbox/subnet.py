"""The network that sandboxes take their links from (pure): HOTSTART_SUBNET, checked."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from hotstart.errors import HotstartError
from hotstart.names import DEFAULT_SUBNET, SUBNET_ENV
from hotstart.reasons import NETWORK_UNUSABLE


def network(environ: Mapping[str, str]) -> tuple[int, int]:
    """First address and number of addresses of the sandbox network; raises ``network-unusable``."""
    text = environ.get(SUBNET_ENV) or DEFAULT_SUBNET
    try:
        parsed = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise HotstartError(NETWORK_UNUSABLE, f"{SUBNET_ENV}={text}: {error}") from None
    if not 16 <= parsed.prefixlen <= 30:
        raise HotstartError(NETWORK_UNUSABLE, f"{SUBNET_ENV}={text} must be a network from /16 to /30")
    return int(parsed.network_address), parsed.num_addresses
