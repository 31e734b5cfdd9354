"""Style sheets and scripts of the served pages, which come from the server itself."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Endpoint

from overtone.finetune.pages.request_validation import RequestError, Route
from overtone.finetune.storage import input_files

FOLDER = Path(__file__).parent
SHARED = (FOLDER / "page.css", FOLDER / "page.js")
TYPES = {".css": "text/css", ".js": "text/javascript"}
ROUTE = Route("GET", r"/assets/[a-z_]+\.(?:css|js)")


def serve_assets(*own: Path) -> Endpoint:
    """Return the endpoint of `SHARED` and of a page's own files. They are read now, so that a page never mixes two versions."""
    contents = {path.name: (input_files.read_text(path), TYPES[path.suffix]) for path in (*SHARED, *own)}

    async def answer(request: Request) -> Response:
        if (found := contents.get(request.path_params["name"])) is None:
            raise RequestError(404, "no such file", "unknown_url")
        return Response(found[0], media_type=found[1], headers={"cache-control": "no-cache"})

    return Endpoint("/assets/{name}", answer)
