"""The front door of a threading HTTP server: who is inside, and whether anyone may come in."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from enum import Enum
from http.server import ThreadingHTTPServer
from typing import Any

SILENT_S = 0.25
"""How long a closing door waits for the first request of a connection that had just been accepted."""


class _Is(Enum):
    SILENT = 0
    """accepted; no request has come yet"""
    BUSY = 1
    IDLE = 2
    """kept alive after an answer"""


class Gate:
    """Closed, the server accepts no connection (they wait in the kernel's backlog, and are served once it is open
    again), idle connections are ended, and the others end with their answer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self._opened.set()
        self._closed_at = 0.0
        self._inside: dict[socket.socket, _Is] = {}

    def wait_open(self) -> None:
        """Block the acceptor while the door is closed."""
        self._opened.wait()

    def arrived(self, connection: socket.socket) -> None:
        """A connection was accepted."""
        with self._lock:
            self._inside[connection] = _Is.SILENT

    def asks(self, connection: socket.socket) -> None:
        """A request has begun."""
        with self._lock:
            self._inside[connection] = _Is.BUSY

    def answered(self, connection: socket.socket) -> bool:
        """An answer was sent; returns whether the connection may wait for another request."""
        with self._lock:
            self._inside[connection] = _Is.IDLE
            return self._opened.is_set()

    def left(self, connection: socket.socket) -> None:
        """The connection was closed."""
        with self._lock:
            self._inside.pop(connection, None)

    def inside(self) -> int:
        """Connections that are still there.  Polled while the door is closed: those that stay silent are ended here."""
        with self._lock:
            if not self._opened.is_set() and time.monotonic() > self._closed_at + SILENT_S:
                self._end(_Is.SILENT)
            return len(self._inside)

    def close(self) -> None:
        """Let nobody in."""
        with self._lock:
            self._opened.clear()
            self._closed_at = time.monotonic()
            self._end(_Is.IDLE)

    def open(self) -> None:
        """Let everybody in."""
        self._opened.set()

    def _end(self, kind: _Is) -> None:
        # The handler reads what the client has sent already, and then the end of the stream.
        for connection, now in self._inside.items():
            if now is kind:
                with contextlib.suppress(OSError):  # the client was faster
                    connection.shutdown(socket.SHUT_RD)


def guard(server: ThreadingHTTPServer) -> Gate:
    """Put a gate in front of ``server``, before it serves.  Its handlers may keep connections alive."""
    gate = Gate()
    handler: Any = server.RequestHandlerClass
    accept, end = server.get_request, server.shutdown_request

    def get_request() -> tuple[socket.socket, Any]:
        gate.wait_open()
        connection, peer = accept()
        gate.arrived(connection)
        return connection, peer

    def shutdown_request(connection: Any) -> None:
        try:
            end(connection)
        finally:
            gate.left(connection)

    class Guarded(handler):  # type: ignore[misc]  # the base is whatever the server was made with
        def parse_request(self) -> bool:
            gate.asks(self.connection)
            return bool(super().parse_request())

        def handle_one_request(self) -> None:
            super().handle_one_request()
            if not gate.answered(self.connection):
                self.close_connection = True

    server.get_request = get_request  # type: ignore[method-assign]
    server.shutdown_request = shutdown_request  # type: ignore[method-assign,assignment]
    server.RequestHandlerClass = Guarded
    return gate
