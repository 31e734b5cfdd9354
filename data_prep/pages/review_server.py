"""HTTP server of the review page: listens on the loopback only and rejects requests from other sites."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.data_prep.clips import review_decisions
from overtone.data_prep.pages.review_page import ReviewSession, build_page
from overtone.data_prep.pages.voice_dataset_loader import resolve_clip
from overtone.finetune.pages import web_server
from overtone.finetune.pages.request_validation import Caller, add_request_guard, require_own_site

if TYPE_CHECKING:
    from fastapi import FastAPI

FOLDER = Path(__file__).parent
WAITING = 64
"""Maximum queued events."""


def serve_page(session: ReviewSession, port: int) -> None:
    """Serve the page; blocks until SIGTERM or Ctrl-C."""
    with web_server.open_private_folder(f"overtone-review-{port}"):
        written = session.dataset.folder / review_decisions.REVIEW
        announcement = f"review: http://{web_server.LOOPBACK}:{port}   (stop with Ctrl-C; decisions are saved to {written})"
        web_server.run_server(make_application(session), web_server.LOOPBACK, port, announcement)


def make_application(session: ReviewSession) -> FastAPI:
    """Return the ASGI application: the page behind the request guard."""
    import gradio
    from fastapi import FastAPI
    from starlette.middleware import Middleware

    from overtone.data_prep.pages.gradio_route_allowlist import add_files, list_page_routes

    warnings.filterwarnings("ignore", module="gradio")  # deprecation warnings inside gradio and its dependencies
    # Without this, gradio copies each displayed clip into its temporary folder.
    gradio.set_static_paths([session.dataset.folder.resolve()])
    page = build_page(session)
    page.queue(max_size=WAITING)
    clips = {str(path): path for path in (resolve_clip(session.dataset, clip) for clip in session.queue.clips.values())}
    middleware = [
        Middleware(web_server.add_security_headers),
        Middleware(add_request_guard, routes=list_page_routes(page), admit=admit_own_site),
    ]
    app = FastAPI(middleware=middleware, docs_url=None, redoc_url=None, openapi_url=None)
    add_files(app, clips.get)
    return gradio.mount_gradio_app(
        app,
        page,
        "/",
        footer_links=[],
        ssr_mode=False,
        theme=web_server.make_theme(),
        css_paths=FOLDER / "review_page.css",
        head=f"<script>{(FOLDER / 'review_page.js').read_text(encoding='utf-8')}</script>",
    )


def admit_own_site(caller: Caller) -> bool:
    """Return True for a request from this machine; the page has no token. Raises `RequestError` for requests of other sites."""
    require_own_site(caller.headers, local=True)
    return True
