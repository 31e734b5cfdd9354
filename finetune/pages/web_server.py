"""Common parts of the local web servers: free port check, security headers, private temporary folder, uvicorn runner."""

from __future__ import annotations

import errno
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from overtone.finetune.errors import UserError
from overtone.finetune.pages.client_addresses import NO_PROXIES, TrustedProxies
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line

if TYPE_CHECKING:
    import asyncio

    import uvicorn
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from overtone.finetune.pages.connection_limits import OpenConnections

LOOPBACK = "127.0.0.1"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self' data: blob:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content security policy: scripts and styles are files of the server, the page connects to no other server, and no site may embed it in a
frame (clickjacking). A script in a text that a page shows does not run."""
HEADERS = ((b"content-security-policy", POLICY.encode()), (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"same-origin"))
"""Headers of every response; a response with a policy of its own keeps that one."""
GRACE = 2
"""Seconds for responses in progress at shutdown; pages keep a connection open indefinitely."""
BACKLOG = 128
"""Connections that wait to be accepted, and that are accepted at once: with those that are open, fewer than the usual 1,024 open files."""
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a server, besides Ctrl-C."""


def require_port(port: int) -> None:
    """Raise `UserError` for an invalid port number."""
    if not 1 <= port <= 65535:
        raise UserError(f"--port {port}: expected a port from 1 to 65535")


def require_free_port(port: int, host: str = LOOPBACK) -> None:
    """Raise `UserError` if the port is in use or the address is not of this machine; called before slow loading."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UserError(
            f"--host {host} is not an address of this machine ({error.strerror}); use 0.0.0.0 to listen on all interfaces"
        ) from error
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise UserError(f"--host {host} is not an address of this machine; use 0.0.0.0 to listen on all interfaces") from error
            raise UserError(f"--port {port} cannot be opened ({error.strerror}); choose another, as --port {port + 1}") from error


def add_security_headers(app: ASGIApp) -> ASGIApp:
    """Return `app` with middleware that adds `HEADERS` to every response that does not have them."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in HEADERS if one[0] not in present)]
            await send(message)

        await app(scope, receive, with_policy)

    return answer


@contextmanager
def open_private_folder(name: str) -> Iterator[Path]:
    """Create a private folder for all temporary files of this process, and remove it at the end, also after SIGTERM.

    `name` contains the address of the server, so that the next server at that address removes leftovers of a killed one.
    """
    place, name = Path(tempfile.gettempdir()), f"{name}-{os.getuid()}"
    for left in files.list_unfinished(place, name):
        if not left.is_symlink() and left.stat().st_uid == os.getuid():  # any user may create folders with that name in /tmp
            files.discard(left)
    previous = {signal.SIGINT: signal.getsignal(signal.SIGINT), **{one: signal.signal(one, _raise_interrupt) for one in ENDING}}
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    try:
        folder = files.fresh_folder(place, name, 0o700)
        try:
            tempfile.tempdir = str(folder)
            os.environ["TMPDIR"] = str(folder)
            yield folder
        finally:
            for one in (*ENDING, signal.SIGINT):  # a second signal must not interrupt the removal
                signal.signal(one, signal.SIG_IGN)
            tempfile.tempdir = before
            os.environ.pop("TMPDIR")
            if variable is not None:  # whatever this process starts later would look for the removed folder
                os.environ["TMPDIR"] = variable
            files.discard(folder)
    finally:
        for one, handler in previous.items():
            signal.signal(one, handler)


def _raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def run_server(
    app: ASGIApp,
    host: str,
    port: int,
    announcement: str,
    make_server: Callable[[uvicorn.Config], uvicorn.Server] | None = None,
    proxies: TrustedProxies = NO_PROXIES,
) -> None:
    """Print the announcement and serve; blocks until SIGTERM or Ctrl-C. `make_server`: by default uvicorn's own."""
    import uvicorn

    from overtone.finetune.pages.connection_limits import ConnectionLimits, OpenConnections

    opened = OpenConnections(ConnectionLimits(), proxies)
    config = configure_server(app, host, port, opened)
    listening = config.bind_socket()
    listening.listen()  # before the announcement: clients that connect now wait instead of being refused
    print_line(announcement)
    with suppress(KeyboardInterrupt):  # uvicorn shuts down cleanly on either signal, then raises the signal again
        (make_server or uvicorn.Server)(config).run(sockets=[listening])
    opened.report()


def configure_server(app: ASGIApp, host: str, port: int, opened: OpenConnections) -> uvicorn.Config:
    """Return Uvicorn's settings, with the limits of `opened` in front of the app. It reads no headers of proxies: the request guard
    does."""
    import uvicorn

    from overtone.finetune.pages.connection_limits import LimitedHttpProtocol

    return uvicorn.Config(
        app,
        host,
        port,
        http=cast("type[asyncio.Protocol]", partial(LimitedHttpProtocol, opened)),
        loop="asyncio",  # the same with and without uvloop, which the extra ray-serve installs
        ws="none",
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=2 * opened.limits.total,  # counts requests whose clients are gone, too; connections have their own limit
        log_level="error",  # any client could fill the log with warnings
        timeout_graceful_shutdown=GRACE,
        server_header=False,
    )
