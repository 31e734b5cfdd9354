"""Allow-list of gradio routes: only the requests that its page sends from a browser; the others of its about sixty routes get 404.

Files are served by `add_files` instead of gradio, whose own route redirects to any address.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, JsonValue, StringConstraints, ValidationError
from starlette.responses import FileResponse, Response

from overtone.finetune.pages.request_validation import LARGEST_JSON, RequestError, Route

if TYPE_CHECKING:
    import gradio
    from fastapi import FastAPI

ID = r"[A-Za-z0-9_-]{1,64}"
"""Pattern of gradio's session and event ids."""
SOUNDS = {
    ".flac": "audio/flac",
    ".wav": "audio/wav",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
    ".webm": "audio/webm",
}
"""Media types of served files; others are sent as bytes, which browsers do not render."""
FILE = "/gradio_api/file="

PLAIN: dict[str, type | tuple[type, ...]] = {"string": str, "integer": (int, float), "number": (int, float), "boolean": bool}
"""Type name of a component's value → Python types in JSON."""
NEVER_EMPTY = ("slider", "checkbox")
"""Components that always have a value."""

Id = Annotated[str, StringConstraints(pattern=f"^{ID}$")]
Body = TypeVar("Body", bound=BaseModel)
Upload = Callable[[str], Path | None]
"""Maps a path sent by a client to the file, or None if the client may not use it."""


def refuse_uploads(_: str) -> Path | None:
    """Refuse every path: the `upload` of a page without uploads."""
    return None


def list_page_routes(page: gradio.Blocks, upload: Upload = refuse_uploads) -> tuple[Route, ...]:
    """Return the routes that a page needs in a browser, without its upload routes."""

    def make_post_route(name: str, check: Callable[[JsonValue], object]) -> Route:
        return Route("POST", f"/gradio_api/{name}", largest=LARGEST_JSON, check=check)

    return (
        Route("GET", "/"),
        Route("GET", r"/(?:theme\.css|favicon\.ico)"),
        Route("GET", r"/(?:assets|static)/(?:[A-Za-z0-9_-][A-Za-z0-9_.-]*/)*[A-Za-z0-9_-][A-Za-z0-9_.-]*"),
        Route("GET", f"{FILE}[^\\x00-\\x1f]+"),
        Route("GET", f"/gradio_api/heartbeat/{ID}"),
        Route("GET", "/gradio_api/queue/data", query={"session_hash": lambda session: session in page._queue.pending_messages_per_session}),
        make_post_route("queue/join", partial(rebuild_call, page, upload)),
        make_post_route("cancel", lambda body: _check_body(CancelCall, body).model_dump()),
        make_post_route("reset", lambda body: _check_body(ResetCall, body).model_dump()),
    )


class JoinCall(BaseModel):
    """Body of queue/join: call a function of the page with the values of its components."""

    data: list[JsonValue]
    fn_index: int
    session_hash: Id
    trigger_id: int | None = None


class CancelCall(BaseModel):
    """Body of cancel: end a call."""

    session_hash: Id
    fn_index: int
    event_id: Id


class ResetCall(BaseModel):
    """Body of reset, sent after a cancelled call."""

    event_id: Id


def rebuild_call(page: gradio.Blocks, upload: Upload, body: JsonValue) -> dict[str, object]:
    """Return the validated call to pass to gradio. Raises `ValueError` for a call that the page cannot send."""
    call = _check_body(JoinCall, body)
    function = page.fns.get(call.fn_index)
    if function is None:
        raise ValueError(f"fn_index {call.fn_index}: the page has no such function; reload the page")
    if len(call.data) != len(function.inputs):
        raise ValueError(f"data: {len(function.inputs)} values expected, got {len(call.data)}; reload the page")
    trigger = call.trigger_id if call.trigger_id in page.blocks else None
    values = [_check_value(upload, part, value) for part, value in zip(function.inputs, call.data, strict=True)]
    return call.model_dump() | {"data": values, "trigger_id": trigger}


def _check_body(kind: type[Body], body: JsonValue) -> Body:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise ValueError("; ".join(f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in error.errors())) from error


def _check_value(upload: Upload, part: Any, value: JsonValue) -> JsonValue:
    """Validate the value of a component: a plain value of its type, or an uploaded file.

    gradio would copy or download any other file and serve it. Session state stays on the server and is never sent.
    """
    kind = part.api_info().get("type")
    if kind == "object" and value is not None:
        path = value.get("path") if isinstance(value, dict) else None
        file = upload(path) if isinstance(path, str) else None
        if file is None:
            raise ValueError("data: the file was not uploaded or has expired; upload it again")
        return {"path": str(file), "meta": {"_type": "gradio.FileData"}}
    kinds = PLAIN.get(kind) if isinstance(kind, str) else None
    if kinds is None or (value is None and part.get_block_name() not in NEVER_EMPTY):
        return None
    if not isinstance(value, kinds) or isinstance(value, bool) != (kinds is bool):
        raise ValueError(f"data: a {part.get_block_name()} sends a {kind}, not {ascii(value)[:100]}; reload the page")
    return value


def add_files(app: FastAPI, find: Upload) -> None:
    """Serve the files that `find` returns, instead of gradio's own route. Call it before mounting the page."""

    async def file(path: str) -> Response:
        found = find(path)
        if found is None or not found.is_file():
            raise RequestError(404, "no such file", "unknown_url")
        return FileResponse(found, media_type=SOUNDS.get(found.suffix.lower(), "application/octet-stream"))

    app.add_api_route(FILE + "{path:path}", file, methods=["GET", "HEAD"])
