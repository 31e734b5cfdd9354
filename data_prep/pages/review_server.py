"""HTTP server of the review page: listens on the loopback only and rejects requests from other sites."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.clips import review_decisions
from data_prep.pages import web_server
from data_prep.pages.report_clips import path_of
from data_prep.pages.review_page import ReviewSession, build

if TYPE_CHECKING:
    from fastapi import FastAPI

FOLDER = Path(__file__).parent
WAITING = 64
"""Maximum queued events."""


def serve(session: ReviewSession, port: int) -> None:
    """Serve the page; blocks until SIGTERM or Ctrl-C."""
    with web_server.private_folder(f"overtone-review-{port}"):
        written = session.dataset.folder / review_decisions.REVIEW
        announcement = f"review: http://{web_server.LOOPBACK}:{port}   (stop with Ctrl-C; decisions are saved to {written})"
        web_server.run(application(session), web_server.LOOPBACK, port, announcement)


def application(session: ReviewSession) -> FastAPI:
    """The ASGI application: the page behind the request guard."""
    import gradio
    from fastapi import FastAPI
    from starlette.middleware import Middleware

    from data_prep.pages.gradio_routes import add_files, page_routes
    from data_prep.pages.request_guard import guard, require_own_site

    warnings.filterwarnings("ignore", module="gradio")  # deprecation warnings inside gradio and its dependencies
    # Without this, gradio copies each displayed clip into its temporary folder.
    gradio.set_static_paths([session.dataset.folder.resolve()])
    page = build(session)
    page.queue(max_size=WAITING)
    clips = {str(path): path for path in (path_of(session.dataset, clip) for clip in session.queue.clips.values())}
    middleware = [
        Middleware(web_server.add_security_headers),
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
        theme=web_server.theme(),
        css_paths=FOLDER / "review_page.css",
        head=f"<script>{(FOLDER / 'review_page.js').read_text(encoding='utf-8')}</script>",
    )
