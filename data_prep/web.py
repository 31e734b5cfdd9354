"""What every page served from here has in common: a free address, fonts of the system, and nobody else to speak with."""

from __future__ import annotations

import errno
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from finetune import files
from finetune.errors import UserError

if TYPE_CHECKING:
    import gradio
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = "127.0.0.1"
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'; base-uri 'self'; form-action 'self'; "
    "object-src 'none'"
)
"""The page may connect to its own server only (gradio's scripts name other hosts), and no other site may show it in a frame, where a
click meant for that site would press a button here."""
HEADERS = ((b"content-security-policy", POLICY.encode()), (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"same-origin"))
"""Of every answer."""
GRACE = 2
"""Seconds that answers in progress have once the server is to end; pages keep a connection open for ever."""
CONNECTIONS = 256
"""At a time; more are answered with 503. Each page that is open holds one or two."""
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a server, beside Ctrl-C."""
SANS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
MONO = ["ui-monospace", "Menlo", "Consolas", "monospace"]


def require_port(port: int) -> None:
    """Raises `UserError` for a number that is no port."""
    if not 1 <= port <= 65535:
        raise UserError(f"--port {port}: a port from 1 to 65535 is expected")


def require_free(port: int, host: str = LOOPBACK) -> None:
    """Raises `UserError` if another program has the port, or the machine no such address: before the seconds that loading takes."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UserError(f"--host {host} is no address of this machine ({error.strerror}); 0.0.0.0 is all that it has") from error
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise UserError(f"--host {host} is no address of this machine; 0.0.0.0 is all that it has") from error
            raise UserError(f"--port {port} cannot be opened ({error.strerror}); choose another, as --port {port + 1}") from error


def theme() -> gradio.Theme:
    """Fonts of the system: others would be fetched. A darker button than gradio's, on which white can be read."""
    from gradio import themes

    made = themes.Base(primary_hue="teal", neutral_hue="stone", font=SANS, font_mono=MONO)
    shades = {"button_primary_background_fill": "*primary_700", "button_primary_background_fill_hover": "*primary_800"}
    return made.set(**shades, **{f"{name}_dark": shade for name, shade in shades.items()})


def closed(app: ASGIApp) -> ASGIApp:
    """Middleware that sends `HEADERS` with every answer."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        await app(scope, receive, with_policy)

    return answer


@contextmanager
def private_folder(name: str) -> Iterator[Path]:
    """A folder for all temporary files of this process, which only its user can read; removed at the end, also after SIGTERM.

    `name` holds the address of the server, so that the next one at that address removes what a killed one left. Enter it before gradio is
    imported, which reads its settings then.
    """
    place, name = Path(tempfile.gettempdir()), f"{name}-{os.getuid()}"
    for left in files.unfinished(place, name):
        if not left.is_symlink() and left.stat().st_uid == os.getuid():  # anybody may make folders of that name in /tmp
            files.discard(left)
    previous = {one: signal.signal(one, _interrupt) for one in ENDING}
    before = tempfile.tempdir
    try:
        folder = files.fresh_folder(place, name, 0o700)
        try:
            tempfile.tempdir = str(folder)
            os.environ |= {"TMPDIR": str(folder), "GRADIO_TEMP_DIR": str(folder), "GRADIO_ANALYTICS_ENABLED": "False"}
            yield folder
        finally:
            for one in (*ENDING, signal.SIGINT):  # a second one must not end the removal half-way
                signal.signal(one, signal.SIG_IGN)
            tempfile.tempdir = before
            files.discard(folder)
    finally:
        for one, handler in previous.items():
            signal.signal(one, handler)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def run(app: FastAPI, host: str, port: int, announcement: str) -> None:
    """Print the announcement and serve; blocks until SIGTERM or Ctrl-C."""
    import uvicorn

    config = uvicorn.Config(
        app, host, port, log_level="warning", timeout_graceful_shutdown=GRACE, limit_concurrency=CONNECTIONS, server_header=False
    )
    listening = config.bind_socket()
    listening.listen()  # before it is announced: whoever connects from now on waits, and is not turned away
    print(announcement, flush=True)
    with suppress(KeyboardInterrupt):  # uvicorn ends in good order by either signal, and then raises it again
        uvicorn.Server(config).run(sockets=[listening])
