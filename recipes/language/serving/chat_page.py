"""The page of `serve` for chats: one conversation with one model, or with two side by side, over the API of the same server."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route as Endpoint

from overtone.finetune.pages import page_assets
from overtone.finetune.pages.jinja_environment import make_environment
from overtone.finetune.pages.request_validation import Route

from .chat_queue import ChatQueue

PAGE = Path(__file__).with_suffix(".html")
ROUTES = (Route("GET", "/"), page_assets.ROUTE)


def page_routes(chats: ChatQueue) -> list[Endpoint]:
    """The page and its files. Everything else that the page needs is the API."""
    longest = min(model.longest for model in chats.models.values())
    text = make_environment(PAGE.parent).get_template(PAGE.name).render(models=list(chats.models), longest=longest)

    async def show(_: Request) -> Response:
        return HTMLResponse(text)

    return [Endpoint("/", show), page_assets.serve_assets(PAGE.with_suffix(".js"))]
