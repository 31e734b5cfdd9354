"""What of gradio is open: the requests that its page sends in a browser. It has some sixty routes; all others are answered with 404.

Files are not served by gradio, whose own route redirects to any address, but by `add_files`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, StringConstraints, ValidationError

from data_prep.request_guard import LARGEST_JSON, Rejected, Route

if TYPE_CHECKING:
    import gradio
    from fastapi import FastAPI
    from starlette.responses import Response

ID = r"[A-Za-z0-9_-]{1,64}"
"""Of sessions and events, as gradio makes them."""
SOUNDS = {
    ".flac": "audio/flac",
    ".wav": "audio/wav",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
    ".webm": "audio/webm",
}
"""Types of the files that are served; others are sent as bytes, which no browser shows as a page."""
FILE = "/gradio_api/file="

PLAIN: dict[str, type | tuple[type, ...]] = {"string": str, "integer": (int, float), "number": (int, float), "boolean": bool}
"""What a component calls its values, and what they are in JSON."""
NEVER_EMPTY = ("slider", "checkbox")
"""Components that always have a value."""

Id = Annotated[str, StringConstraints(pattern=f"^{ID}$")]
Upload = Callable[[str], Path | None]
"""Path as a client names it → the file, if it is one that clients may name."""


def nothing_uploaded(_: str) -> Path | None:
    """For a page without uploads."""
    return None


def page_routes(page: gradio.Blocks, upload: Upload = nothing_uploaded) -> tuple[Route, ...]:
    """The requests of a page that was opened in a browser. Those of its uploads belong to whoever keeps them."""

    def posted(name: str, check: Callable[[Any], Any]) -> Route:
        return Route("POST", f"/gradio_api/{name}", largest=LARGEST_JSON, check=check)

    return (
        Route("GET", "/"),
        Route("GET", r"/(?:theme\.css|favicon\.ico)"),
        Route("GET", r"/(?:assets|static)/(?:[A-Za-z0-9_-][A-Za-z0-9_.-]*/)*[A-Za-z0-9_-][A-Za-z0-9_.-]*"),
        Route("GET", f"{FILE}[^\\x00-\\x1f]+"),
        Route("GET", f"/gradio_api/heartbeat/{ID}"),
        Route("GET", "/gradio_api/queue/data", query={"session_hash": lambda session: session in page._queue.pending_messages_per_session}),
        posted("queue/join", partial(rebuild_call, page, upload)),
        posted("cancel", partial(_checked, CancelCall)),
        posted("reset", partial(_checked, ResetCall)),
    )


class JoinCall(BaseModel):
    """A press on a button: call a function of the page with the values of its components."""

    data: list[Any]
    fn_index: int
    session_hash: Id
    trigger_id: int | None = None


class CancelCall(BaseModel):
    """End a call."""

    session_hash: Id
    fn_index: int
    event_id: Id


class ResetCall(BaseModel):
    """Follows a cancelled call."""

    event_id: Id


def rebuild_call(page: gradio.Blocks, upload: Upload, body: Any) -> dict[str, Any]:
    """The call as gradio may see it. Raises `ValueError` for one that the page cannot have sent."""
    call = _checked(JoinCall, body)
    function = page.fns.get(call["fn_index"])
    if function is None:
        raise ValueError(f"fn_index {call['fn_index']}: the page has no such function; load it again")
    if len(call["data"]) != len(function.inputs):
        raise ValueError(f"data: {len(function.inputs)} values are expected, and {len(call['data'])} were sent; load the page again")
    trigger = call["trigger_id"] if call["trigger_id"] in page.blocks else None
    values = [_value(upload, part, value) for part, value in zip(function.inputs, call["data"], strict=True)]
    return call | {"data": values, "trigger_id": trigger}


def _checked(kind: type[BaseModel], body: Any) -> dict[str, Any]:
    try:
        return kind.model_validate(body).model_dump()
    except ValidationError as error:
        raise ValueError("; ".join(f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in error.errors())) from error


def _value(upload: Upload, part: Any, value: Any) -> Any:
    """What a component of the page may send: a plain value of its kind, or a file that was uploaded.

    gradio would copy any other file to where it is served, or fetch it. The state of a session stays here, and is never sent.
    """
    kind = part.api_info().get("type")
    if kind == "object" and value is not None:
        path = value.get("path") if isinstance(value, dict) else None
        file = upload(path) if isinstance(path, str) else None
        if file is None:
            raise ValueError("data: a file is named that was not uploaded, or is no longer kept; upload it again")
        return {"path": str(file), "meta": {"_type": "gradio.FileData"}}
    kinds = PLAIN.get(kind) if isinstance(kind, str) else None
    if kinds is None or (value is None and part.get_block_name() not in NEVER_EMPTY):
        return None
    if not isinstance(value, kinds) or isinstance(value, bool) != (kinds is bool):
        raise ValueError(f"data: a {part.get_block_name()} sends a {kind}, not {ascii(value)[:100]}; load the page again")
    return value


def add_files(app: FastAPI, find: Upload) -> None:
    """Serve the files that `find` knows, in place of gradio's own route. Before the page is mounted."""
    from starlette.responses import FileResponse

    async def file(path: str) -> Response:
        found = find(path)
        if found is None or not found.is_file():
            raise Rejected(404, "there is no such file here", "unknown_url")
        return FileResponse(found, media_type=SOUNDS.get(found.suffix.lower(), "application/octet-stream"))

    app.add_api_route(FILE + "{path:path}", file, methods=["GET", "HEAD"])
