"""The web application of the studio: all pages behind the request guard."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from overtone.finetune.errors import UserError
from overtone.finetune.pages import page_assets, web_server
from overtone.finetune.pages.request_validation import RequestError, add_request_guard
from overtone.finetune.terminal import print_diagnostic
from overtone.recipes.serving.access_control import AccessControl, AccessPolicy
from overtone.recipes.serving.api_errors import to_refusal
from overtone.studio.page_interface import FOLDER, Studio
from overtone.studio.page_list import PAGES


def make_application(place: Path, host: str, policy: AccessPolicy) -> Starlette:
    """Return the ASGI application for the folder `place`. `host`: address that it listens on."""
    studio = Studio(place, host)
    studio.pages.extend(make(studio) for make in PAGES)
    pages = studio.pages
    assets = page_assets.serve_assets(FOLDER / "studio_form.js", *(path for page in pages for path in page.assets))
    middleware = [
        Middleware(web_server.add_security_headers),
        Middleware(
            add_request_guard,
            routes=(*(route for page in pages for route in page.routes), page_assets.ROUTE),
            admit=AccessControl(policy).admit,
            answer=lambda error: answer_refused(studio, error),
            proxies=policy.proxies,
        ),
    ]
    endpoints = [endpoint for page in pages for endpoint in page.endpoints]
    handlers = dict.fromkeys((UserError, HTTPException, OSError, ValueError, Exception), make_error_handler(studio))
    return Starlette(routes=[*endpoints, assets], middleware=middleware, exception_handlers=handlers)


def make_error_handler(studio: Studio) -> Callable[[Request, Exception], Response]:
    """Return what answers a request that a page refuses or cannot answer: a page with the sentence for a browser, JSON for a script."""

    def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, ValueError):  # a bug, or content of the folder that no page expects: the terminal shows where
            print_diagnostic("".join(traceback.format_exception(error)))
        status, sentence = describe_error(error)
        response = render_error(studio, request.method, request.headers, status, sentence)
        # The answer to a bug does not pass through the middleware.
        response.headers.update({name.decode(): value.decode() for name, value in web_server.HEADERS})
        return response

    return answer


def describe_error(error: Exception) -> tuple[int, str]:
    """Return the status and the sentence of the answer to a request that failed."""
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    if isinstance(error, UserError):
        return 400, str(error)
    if isinstance(error, OSError):
        name = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return 400, f"{name}{error.strerror or error}; check that the file exists and its permissions, then reload the page"
    if isinstance(error, ValueError):
        return 400, f"this cannot be shown ({error}); the studio's terminal shows where, please report it"
    return 500, "this is a bug of the studio; its terminal shows where, please report it"


def render_error(studio: Studio, method: str, headers: Headers, status: int, sentence: str) -> Response:
    """Return the page with a sentence for a browser that shows a page, and JSON for a script."""
    sentence = sentence.encode("utf-8", "backslashreplace").decode()  # a name that is not UTF-8 has half characters
    if method != "GET" or "text/html" not in headers.get("accept", ""):
        return JSONResponse({"detail": sentence}, status)
    page = studio.render("error_page.html", "", sentence=sentence)
    page.status_code = status
    return page


def answer_refused(studio: Studio, error: RequestError) -> ASGIApp:
    """Return what answers a request that the guard refuses."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        refusal, headers = to_refusal(error), Headers(scope=scope)
        response: Response = refusal.response()
        if scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            response = render_error(studio, "GET", headers, error.status_code, error.detail)
            response.headers.update(refusal.headers or {})  # for a missing token, the browser requests it from its user
        await response(scope, receive, send)

    return answer
