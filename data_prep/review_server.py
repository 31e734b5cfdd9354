"""The server of the review page: for this machine alone, and closed to every other."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from data_prep import decisions, web
from data_prep.review_page import Desk, build

FOLDER = Path(__file__).parent


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
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=[web.LOOPBACK, "localhost"]), Middleware(web.closed)]
    page.launch(
        server_name=web.LOOPBACK,
        server_port=port,
        share=False,
        quiet=True,
        footer_links=[],
        ssr_mode=False,
        theme=web.theme(),
        css_paths=FOLDER / "review_page.css",
        head=f"<script>{(FOLDER / 'review_page.js').read_text(encoding='utf-8')}</script>",
        app_kwargs={"middleware": middleware},
        max_file_size=1,  # byte: nothing is to be uploaded, and any site could ask the browser to
        prevent_thread_lock=True,
    )
    print(f"review: http://{web.LOOPBACK}:{port}   (Ctrl-C ends it; decisions are in {desk.dataset.folder / decisions.REVIEW})", flush=True)
    page.block_thread()
