"""The upload of a reference clip from the page: one file of limited size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Endpoint

from overtone.finetune.errors import UserError
from overtone.finetune.pages.request_validation import RequestError, Route
from overtone.recipes.speech.serving.uploaded_clips import LARGEST

if TYPE_CHECKING:
    from overtone.recipes.speech.serving.uploaded_clips import Clips

CONCURRENT_UPLOADS = 4
"""Number of uploads that are read at a time; others wait."""
FORM_OVERHEAD = 2**12
"""Maximum size in bytes of a form without its file."""

ROUTE = Route("POST", "/clip", largest=LARGEST + FORM_OVERHEAD)


def serve_uploads(clips: Clips) -> Endpoint:
    """The endpoint of uploads. Its answer names the clip for `POST /speak`."""
    turns = asyncio.Semaphore(CONCURRENT_UPLOADS)

    async def upload(request: Request) -> Response:
        async with turns:
            data, name = await read_form(request)
            try:
                return JSONResponse({"clip": str(await asyncio.to_thread(clips.keep, data, name))})
            except UserError as error:
                raise RequestError(503, f"the clip cannot be saved: {error}", "no_room") from error

    return Endpoint("/clip", upload, methods=["POST"])


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
