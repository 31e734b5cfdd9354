"""Connections to a server on this machine, from any loopback address and with any bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import uvicorn

from overtone.finetune.pages import web_server
from overtone.finetune.pages.client_addresses import NO_PROXIES, TrustedProxies
from overtone.finetune.pages.connection_limits import ConnectionLimits, OpenConnections
from tests import loopback

DEFAULT_LIMITS = ConnectionLimits()
PATIENCE = 60.0
"""Seconds after which a server that does not react fails a test."""


@contextmanager
def serving(
    app: Any, limits: ConnectionLimits = DEFAULT_LIMITS, proxies: TrustedProxies = NO_PROXIES
) -> Iterator[tuple[int, OpenConnections]]:
    """The port of a server of the app in a thread, and its connections."""
    opened = OpenConnections(limits, proxies)
    config = web_server.configure_server(app, "127.0.0.1", loopback.free_port(), opened)
    server, listening = uvicorn.Server(config), config.bind_socket()
    listening.listen()
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield config.port, opened
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    """A connection from an address of 127.0.0.0/8."""
    return socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0))


def request(path: str = "/", *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    """The bytes of a request, which a `Content-Length` among the headers does not need to fit."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers, *([f"Content-Length: {len(body)}"] if body else [])]
    return "\r\n".join([*lines, "", ""]).encode() + body


def read_status(connection: socket.socket) -> int:
    """The status of the next response, which has a short body; 0 if the server closed without one."""
    received = b""
    while b"\r\n\r\n" not in received:
        if not (part := _receive(connection)):
            return 0
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += _receive(connection)
    return int(head.split()[1])


def read_to_end(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection; fails if it does not within `PATIENCE`."""
    received = b""
    while part := _receive(connection):
        received += part
    return received


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(2**16)
    except ConnectionError:  # closed while bytes were on their way
        return b""


def check_limits(port: int, path: str, *headers: str) -> None:
    """Fails unless the layer of limits is in front of a server that runs with its usual ones. `path`: a GET with these headers is 200."""
    with ExitStack() as opened:
        for _ in range(300):
            with suppress(ConnectionError):  # made room for a later one
                opened.enter_context(connect(port, "127.0.0.5")).sendall(b"GET / HT")
        with connect(port) as connection:
            connection.sendall(request(path, *headers))
            assert read_status(connection) == 200
            connection.sendall(request(path, *headers, "Content-Encoding: gzip"))
            assert read_status(connection) == 415
            connection.sendall(request(path, *headers, "Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n")
            assert b" 400 " in read_to_end(connection)
