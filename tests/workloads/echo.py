"""A TCP server that echoes: the peer outside of the sandbox, for the workload ``outside-tcp``."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def echo(host: str = "127.0.0.1") -> Iterator[str]:
    """``host:port`` of a server that echoes what its connections send; closed at the end."""
    with socket.create_server((host, 0)) as server:
        connections: list[socket.socket] = []
        thread = threading.Thread(target=_serve, args=(server, connections), daemon=True)
        thread.start()
        try:
            yield f"{host}:{server.getsockname()[1]}"
        finally:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                connection.close()


def _serve(server: socket.socket, connections: list[socket.socket]) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _address = server.accept()
            connections.append(connection)
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := connection.recv(65536):
            connection.sendall(data)
