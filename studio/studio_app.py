"""The web application of the studio: all pages behind the request guard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from overtone.finetune.errors import UserError
from overtone.finetune.pages import page_assets, web_server
from overtone.finetune.pages.request_validation import add_request_guard
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
            answer=lambda error: to_refusal(error).response(),  # for a missing token, the browser requests it from its user
            proxies=policy.proxies,
        ),
    ]
    endpoints = [endpoint for page in pages for endpoint in page.endpoints]
    handlers = dict.fromkeys((UserError, HTTPException), make_error_handler(studio))
    return Starlette(routes=[*endpoints, assets], middleware=middleware, exception_handlers=handlers)


def make_error_handler(studio: Studio) -> Callable[[Request, Exception], Response]:
    """Return what answers a request that a page refuses: a page with the sentence for a browser, JSON for a script."""

    def answer(request: Request, error: Exception) -> Response:
        status, sentence = (error.status_code, error.detail) if isinstance(error, HTTPException) else (400, str(error))
        if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
            return JSONResponse({"detail": sentence}, status)
        page = studio.render("error_page.html", "", sentence=sentence)
        page.status_code = status
        return page

    return answer
