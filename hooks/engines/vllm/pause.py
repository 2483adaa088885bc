"""The front door of vLLM's API server: closed without refusing anybody, empty before a capture, open again after it.

Closed means that nobody accepts connections, while the listening socket itself stays: the kernel completes handshakes
and keeps what clients send, and everything is read once the door is open again.  Connections that exist are ended: idle
ones at once, the others after their answer, as in uvicorn's own graceful shutdown.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import termios
import time
from typing import Any

SILENT_S = 0.25
"""How long a connection that was just accepted may take to send its first request."""


class FrontDoor:
    """All methods run on the server's event loop."""

    def __init__(self, server: Any) -> None:
        """``server`` is the uvicorn server."""
        self._server = server
        self._kept: list[socket.socket] = []
        self._closed_at = 0.0

    async def close(self) -> None:
        """Accept nobody from now on."""
        if self._kept:
            return
        self._closed_at = time.monotonic()
        for listener in self._server.servers:
            for each in listener.sockets:
                self._kept.append(socket.socket(fileno=os.dup(each.fileno())))
            listener.close()
        await self.sweep()

    async def sweep(self) -> int:
        """End what is idle; returns how many connections and requests are still there.  Called until it returns 0."""
        silence_is_over = time.monotonic() > self._closed_at + SILENT_S
        for connection in list(self._server.server_state.connections):
            cycle = getattr(connection, "cycle", None)
            if cycle is not None and not cycle.response_complete:
                connection.shutdown()  # ends with its answer
            elif (cycle is not None or silence_is_over) and not _has_sent(connection):
                connection.shutdown()
        # A request whose client has gone away has no connection any more, but may still be at work.
        return max(len(self._server.server_state.connections), len(self._server.server_state.tasks))

    async def open(self) -> None:
        """Accept again, those first who came meanwhile.  Does nothing if the door is open."""
        config, kept = self._server.config, self._kept
        if not kept:
            return
        loop = asyncio.get_running_loop()
        self._kept = []
        self._server.servers = [
            await loop.create_server(self._protocol, sock=each, ssl=config.ssl, backlog=config.backlog) for each in kept
        ]

    def _protocol(self) -> asyncio.Protocol:
        """As in uvicorn.Server.startup."""
        config = self._server.config
        made: asyncio.Protocol = config.http_protocol_class(
            config=config, server_state=self._server.server_state, app_state=self._server.lifespan.state
        )
        return made


def _has_sent(connection: Any) -> bool:
    """True if the client's next request lies in the kernel already: it will be read and answered before the end."""
    transport = getattr(connection, "transport", None)
    known = transport and transport.get_extra_info("socket")
    if known is None or known.fileno() < 0:
        return False
    waiting = fcntl.ioctl(known.fileno(), termios.FIONREAD, b"\0" * 4)
    return bool(struct.unpack("@i", waiting)[0])
