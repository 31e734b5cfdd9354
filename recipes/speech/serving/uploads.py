"""The page's upload routes, which replace gradio's own: one file of limited size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from overtone.finetune.errors import UserError
from overtone.finetune.pages.request_validation import RequestError, Route
from overtone.recipes.speech.serving.uploaded_clips import LARGEST

if TYPE_CHECKING:
    from overtone.recipes.speech.serving.uploaded_clips import Clips

CONCURRENT_UPLOADS = 4
"""Number of uploads that are read at a time; others wait."""
FORM_OVERHEAD = 2**12
"""Maximum size in bytes of a form without its file."""

ROUTES = (
    Route("POST", "/gradio_api/upload", largest=LARGEST + FORM_OVERHEAD),
    Route("GET", "/gradio_api/upload_progress"),
)


def upload_routes(clips: Clips) -> APIRouter:
    """The router; include it before gradio is mounted, so that it takes precedence."""
    router, turns = APIRouter(prefix="/gradio_api"), asyncio.Semaphore(CONCURRENT_UPLOADS)

    @router.post("/upload")
    async def upload(request: Request) -> list[str]:
        async with turns:
            data, name = await read_form(request)
            try:
                return [str(await asyncio.to_thread(clips.keep, data, name))]
            except UserError as error:
                raise RequestError(503, f"the clip cannot be saved: {error}", "no_room") from error

    @router.get("/upload_progress")
    async def progress() -> Response:
        return Response('data: {"msg": "done"}\n\n', media_type="text/event-stream")  # the page's progress bar needs a response

    return router


async def read_form(request: Request) -> tuple[bytes, str]:
    """(content, name) of the one file of a form. Raises `RequestError` for anything else."""
    try:
        async with request.form(max_files=1, max_fields=0) as form:
            file = form.get("files")
            if not isinstance(file, UploadFile):
                raise RequestError(400, "expected a form with one file named `files`", "invalid_upload")
            if (file.size or 0) > LARGEST:
                raise RequestError(413, f"the file is larger than {LARGEST} bytes", "request_too_large")
            return await file.read(), file.filename or ""
    except ClientDisconnect as error:
        raise RequestError(499, "the client disconnected", "disconnected") from error  # nobody receives it
    except RequestError:
        raise
    except HTTPException as error:
        raise RequestError(400, f"the upload cannot be read ({error.detail})", "invalid_upload") from error
