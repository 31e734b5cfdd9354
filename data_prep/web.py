"""What every page served from here has in common: a free address, fonts of the system, and nobody else to speak with."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from finetune.errors import UserError

if TYPE_CHECKING:
    import gradio
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = "127.0.0.1"
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
"""The page may speak with its own server and with nobody else: gradio's scripts name other hosts."""
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
    """Middleware that sends `POLICY` with every answer."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", POLICY.encode())]
            await send(message)

        await app(scope, receive, with_policy)

    return answer
