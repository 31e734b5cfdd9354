"""The server of the review page: for this machine alone, and closed to every other."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep import decisions, web
from data_prep.report_clips import path_of
from data_prep.review_page import Desk, build

if TYPE_CHECKING:
    from fastapi import FastAPI

FOLDER = Path(__file__).parent
WAITING = 64
"""Presses on buttons that may wait."""


def serve(desk: Desk, port: int) -> None:
    """Blocks until SIGTERM or Ctrl-C."""
    with web.private_folder(f"overtone-review-{port}"):
        written = desk.dataset.folder / decisions.REVIEW
        announcement = f"review: http://{web.LOOPBACK}:{port}   (Ctrl-C ends it; decisions are in {written})"
        web.run(application(desk), web.LOOPBACK, port, announcement)


def application(desk: Desk) -> FastAPI:
    """The page behind its guard."""
    import gradio
    from fastapi import FastAPI
    from starlette.middleware import Middleware

    from data_prep.gradio_routes import add_files, page_routes
    from data_prep.request_guard import guard, require_own_site

    warnings.filterwarnings("ignore", module="gradio")  # its own calls of what its own dependencies deprecate
    # Without this line gradio copies each clip that is shown into its temporary folder.
    gradio.set_static_paths([desk.dataset.folder.resolve()])
    page = build(desk)
    page.queue(max_size=WAITING)
    clips = {str(path): path for path in (path_of(desk.dataset, clip) for clip in desk.queue.clips.values())}
    middleware = [
        Middleware(web.closed),
        Middleware(guard, routes=page_routes(page), admit=lambda caller: require_own_site(caller.headers, local=True)),
    ]
    app = FastAPI(middleware=middleware, docs_url=None, redoc_url=None, openapi_url=None)
    add_files(app, clips.get)
    return gradio.mount_gradio_app(
        app,
        page,
        "/",
        footer_links=[],
        ssr_mode=False,
        theme=web.theme(),
        css_paths=FOLDER / "review_page.css",
        head=f"<script>{(FOLDER / 'review_page.js').read_text(encoding='utf-8')}</script>",
    )
