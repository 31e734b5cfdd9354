"""HTTP server of the review page: listens on the loopback only and rejects requests from other sites."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route as Endpoint

from overtone.data_prep.audio.waveform import AudioError, read_audio
from overtone.data_prep.clips import review_decisions
from overtone.data_prep.pages.report_clips import TYPES
from overtone.data_prep.pages.review_page import FOLDER, LONGEST_SEARCH, DecisionCall, ReviewSession
from overtone.data_prep.pages.review_queue import ORDERS, list_views
from overtone.data_prep.pages.spectrogram_images import RATE, draw_spectrogram
from overtone.data_prep.pages.voice_dataset_loader import resolve_clip
from overtone.finetune.errors import UserError
from overtone.finetune.pages import page_assets, web_server
from overtone.finetune.pages.request_validation import (
    LARGEST_JSON,
    Caller,
    RequestError,
    Route,
    add_request_guard,
    parse_body,
    require_own_site,
)

UNSTORED = {"cache-control": "no-store"}
"""Header of responses that change with each decision."""


def serve_page(session: ReviewSession, port: int) -> None:
    """Serve the page; blocks until SIGTERM or Ctrl-C."""
    with web_server.open_private_folder(f"overtone-review-{port}"):
        written = session.dataset.folder / review_decisions.REVIEW
        announcement = f"review: http://{web_server.LOOPBACK}:{port}   (stop with Ctrl-C; decisions are saved to {written})"
        web_server.run_server(make_application(session), web_server.LOOPBACK, port, announcement)


def make_application(session: ReviewSession, admit: Callable[[Caller], bool] | None = None) -> Starlette:
    """Return the ASGI application: the page behind the request guard. `admit`: by default `admit_own_site`."""
    drawing = asyncio.Semaphore(1)

    async def show_page(request: Request) -> Response:
        return HTMLResponse(session.render_page(**request.query_params), headers=UNSTORED)

    async def show_clip(request: Request) -> Response:
        return JSONResponse(session.show_clip(find_id(session, request)).model_dump(), headers=UNSTORED)

    async def play(request: Request) -> Response:
        path = find_file(session, request)
        return FileResponse(path, media_type=TYPES.get(path.suffix.lower(), "application/octet-stream"))

    async def draw(request: Request) -> Response:
        path = find_file(session, request)
        async with drawing:
            return Response(await asyncio.to_thread(draw_clip, path), media_type="image/png")

    async def decide(request: Request) -> Response:
        call = DecisionCall.model_validate(await request.json())
        try:
            session.save_decision(call)
        except KeyError as error:
            raise RequestError(404, f"decision not saved: there is no clip {call.id!r}; reload the page", "unknown_clip") from error
        except UserError as error:
            raise RequestError(400, f"decision not saved: {error}", "not_saved") from error
        return JSONResponse({"saved": call.id})

    endpoints = [
        Endpoint("/", show_page),
        Endpoint("/clip", show_clip),
        Endpoint("/sound", play),
        Endpoint("/picture", draw),
        Endpoint("/decision", decide, methods=["POST"]),
        page_assets.serve_assets(FOLDER / "review_page.js"),
    ]
    middleware = [
        Middleware(web_server.add_security_headers),
        Middleware(add_request_guard, routes=list_routes(session), admit=admit or admit_own_site),
    ]
    return Starlette(routes=endpoints, middleware=middleware)


def list_routes(session: ReviewSession) -> tuple[Route, ...]:
    """Return the requests that the page sends."""
    by_id = {"id": session.queue.clips.__contains__}
    shown = {
        "view": list_views(session.queue).__contains__,
        "order": ORDERS.__contains__,
        "search": lambda text: len(text) <= LONGEST_SEARCH,
    }
    return (
        Route("GET", "/", query=shown),
        *(Route("GET", path, query=by_id) for path in ("/clip", "/sound", "/picture")),
        Route("POST", "/decision", largest=LARGEST_JSON, check=lambda body: parse_body(DecisionCall, body).model_dump()),
        page_assets.ROUTE,
    )


def find_id(session: ReviewSession, request: Request) -> str:
    """Return the id of the clip in the address of a request. Raises `RequestError` (404) without one."""
    id: str = request.query_params.get("id", "")
    if id not in session.queue.clips:
        raise RequestError(404, "the address names no clip; reload the page", "unknown_clip")
    return id


def find_file(session: ReviewSession, request: Request) -> Path:
    """Return the file of the clip in the address of a request. Raises `RequestError` (404) if it is gone, or now outside of the dataset."""
    try:
        path = resolve_clip(session.dataset, session.queue.clips[find_id(session, request)])
    except UserError as error:
        raise RequestError(404, str(error), "unknown_url") from error
    if not path.is_file():
        raise RequestError(404, "the file of this clip is gone", "unknown_url")
    return path


def draw_clip(path: Path) -> bytes:
    """Return the PNG of a clip's spectrogram. Raises `RequestError` (404) for a file without sound."""
    try:
        samples = read_audio(path, RATE).samples
    except (AudioError, OSError) as error:
        raise RequestError(404, f"the clip cannot be read ({error})", "unreadable") from error
    if not len(samples):
        raise RequestError(404, "the clip has no samples", "unreadable")
    return draw_spectrogram(samples)


def admit_own_site(caller: Caller) -> bool:
    """Return True for a request from this machine; the page has no token. Raises `RequestError` for requests of other sites."""
    require_own_site(caller.headers, local=True)
    return True
