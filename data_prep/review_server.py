"""The server of the review page: for this machine alone, and closed to every other."""

from __future__ import annotations

import os
import socket
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep import decisions
from data_prep.review_page import Desk, build
from finetune.errors import UserError

if TYPE_CHECKING:
    import gradio
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER = Path(__file__).parent
HOST = "127.0.0.1"
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
"""The page may speak with its own server and with nobody else: gradio's scripts name other hosts."""
SANS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
MONO = ["ui-monospace", "Menlo", "Consolas", "monospace"]


def require_free(port: int) -> None:
    """Raises `UserError` if another program has the port: before the seconds that loading the page takes."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError as error:
            raise UserError(f"--port {port} cannot be opened ({error.strerror}); choose another, as --port {port + 1}") from error


def serve(desk: Desk, port: int) -> None:
    """Blocks until Ctrl-C."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported; without it the page would call home
    import gradio
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    warnings.filterwarnings("ignore", module="gradio")  # its own calls of what its own dependencies deprecate
    # Clips are served where they lie, and nothing else is: without this line each is copied into the system's temporary folder.
    gradio.set_static_paths([desk.dataset.folder.resolve()])
    page = build(desk)
    # A site elsewhere that resolves its own name to this machine would pass for the page: only these two names are answered.
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"]), Middleware(_closed)]
    page.launch(
        server_name=HOST,
        server_port=port,
        share=False,
        quiet=True,
        footer_links=[],
        ssr_mode=False,
        theme=_theme(),
        css_paths=FOLDER / "review_page.css",
        head=f"<script>{(FOLDER / 'review_page.js').read_text(encoding='utf-8')}</script>",
        app_kwargs={"middleware": middleware},
        max_file_size=1,  # byte: nothing is to be uploaded, and any site could ask the browser to
        prevent_thread_lock=True,
    )
    print(f"review: http://{HOST}:{port}   (Ctrl-C ends it; decisions are in {desk.dataset.folder / decisions.REVIEW})", flush=True)
    page.block_thread()


def _theme() -> gradio.Theme:
    """Fonts of the system: others would be fetched. A darker button than gradio's, on which white can be read."""
    from gradio import themes

    theme = themes.Base(primary_hue="teal", neutral_hue="stone", font=SANS, font_mono=MONO)
    shades = {"button_primary_background_fill": "*primary_700", "button_primary_background_fill_hover": "*primary_800"}
    return theme.set(**shades, **{f"{name}_dark": shade for name, shade in shades.items()})


def _closed(app: ASGIApp) -> ASGIApp:
    """Middleware that sends `POLICY` with every answer."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", POLICY.encode())]
            await send(message)

        await app(scope, receive, with_policy)

    return answer
