"""The request with which pages send files into a folder, piece by piece."""

from __future__ import annotations

import re
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Endpoint

from overtone.finetune.pages.request_validation import RequestError, Route
from overtone.finetune.storage import folder_handles
from overtone.studio.folder_content import find_inside
from overtone.studio.page_interface import FOLDER, UNSTORED, Page, Studio, is_short
from overtone.studio.uploads.received_files import LARGEST_PIECE, PARTS, FilePiece, store_piece
from overtone.studio.uploads.speaker_consent import CONSENT, read_consent
from overtone.studio.uploads.upload_folders import CHATS

QUERY = {
    "id": lambda text: re.fullmatch(r"[0-9a-f]{32}", text) is not None,
    "folder": is_short,
    "name": lambda text: len(text) <= 2000,
    "offset": lambda text: re.fullmatch(r"[0-9]{1,15}", text, re.ASCII) is not None,
    "size": lambda text: re.fullmatch(r"[0-9]{1,15}", text, re.ASCII) is not None,
    "replace": lambda text: text in ("yes", "no"),
}


def make_page(studio: Studio) -> Page:
    """Return the request, which belongs to no page of its own."""

    async def receive(request: Request) -> Response:
        if missing := QUERY.keys() - request.query_params.keys():
            raise RequestError(400, f"the address lacks {', '.join(sorted(missing))}; reload the page", "invalid_query")
        given = request.query_params
        piece = FilePiece(
            given["id"], given["folder"], given["name"], int(given["offset"]), int(given["size"]), replace=given["replace"] == "yes"
        )
        folder = find_inside(studio.place, piece.folder)
        if Path(piece.folder).parts[:1] != (CHATS,) and read_consent(folder) is None:
            raise RequestError(403, f"{piece.folder} has no {CONSENT}; give the consent of the speaker first", "no_consent")
        stored = await run_in_threadpool(store_piece, studio.place, piece, await request.body())
        return JSONResponse({"path": stored.path, "whole": stored.is_whole, "was_there": stored.was_there})

    def show_size(request: Request) -> Response:
        id = request.query_params.get("id", "")
        if not id:
            raise RequestError(400, "the address lacks id; reload the page", "invalid_query")
        found = folder_handles.stat_without_following(studio.place / PARTS / id)  # None if nothing is stored, or the file is whole
        return JSONResponse({"size": 0 if found is None else found.st_size}, headers=UNSTORED)

    return Page(
        routes=(
            Route("GET", "/upload", query={"id": QUERY["id"]}),
            Route("POST", "/upload", query=QUERY, largest=LARGEST_PIECE),
        ),
        endpoints=(
            Endpoint("/upload", show_size),
            Endpoint("/upload", receive, methods=["POST"]),
        ),
        assets=(FOLDER / "file_upload.js",),
    )
