"""The review of a voice dataset inside the studio: the app of `overtone review`, which writes the same file."""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.routing import Route as Endpoint

from overtone.data_prep.manifest import REJECTS, SUMMARY, TRAIN, VAL
from overtone.data_prep.pages import voice_dataset_loader
from overtone.data_prep.pages.review_page import FOLDER as REVIEWS
from overtone.data_prep.pages.review_page import DecisionCall, ReviewSession
from overtone.data_prep.pages.review_server import make_application
from overtone.finetune.pages.request_validation import LARGEST_JSON, RequestError, Route, parse_body
from overtone.studio.folder_content import find_inside
from overtone.studio.page_interface import Page, Studio, is_short, link_to

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

KEY = r"/review/[A-Za-z0-9_-]{1,700}/"
MOST = 8
"""Reviews that stay in memory."""


def make_page(studio: Studio) -> Page:
    """Return the page."""
    shown = {"id": lambda text: len(text) <= 2000, "view": is_short, "order": is_short, "search": is_short}
    return Page(
        routes=(
            Route("GET", rf"{KEY}(?:clip|sound|picture)?", query=shown),
            Route("POST", f"{KEY}decision", largest=LARGEST_JSON, check=lambda body: parse_body(DecisionCall, body).model_dump()),
        ),
        endpoints=(Endpoint("/review/{key}/{rest:path}", OpenReviews(studio)),),
        assets=(REVIEWS / "review_page.js",),
    )


def make_address(folder: str) -> str:
    """Return the address of the review of a dataset. Its requests are relative to this address, so the folder is one part of it."""
    return f"/review/{base64.urlsafe_b64encode(folder.encode('utf-8', 'surrogateescape')).decode().rstrip('=')}/"


class OpenReviews:
    """Owns the reviews of the datasets that people look at; a dataset that was prepared again is read again."""

    def __init__(self, studio: Studio) -> None:
        self._studio, self._lock = studio, threading.Lock()
        self._open: dict[str, tuple[Mapping[str, int], ASGIApp]] = {}
        """Folder → times of its files in nanoseconds, and its app."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a review's page."""
        key, rest = scope["path_params"]["key"], scope["path_params"]["rest"]
        try:
            folder = base64.urlsafe_b64decode(f"{key}{'=' * (-len(key) % 4)}").decode("utf-8", "surrogateescape")
        except binascii.Error as error:
            raise RequestError(404, "the address names no dataset; go back to it and begin again", "unknown_url") from error
        app = await run_in_threadpool(self.find_app, folder)
        await app({**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode(), "root_path": ""}, receive, send)

    def find_app(self, name: str) -> ASGIApp:
        """Return the app of a dataset. Raises `UserError` for a folder that is none."""
        folder = find_inside(self._studio.place, name)
        with self._lock:
            files = [folder / one for one in (TRAIN, VAL, REJECTS, SUMMARY)]
            times = {path.name: path.stat().st_mtime_ns for path in files if path.is_file()}
            known = self._open.pop(name, None)
            if known is None or known[0] != times:
                back = link_to("", "/voice/dataset", folder=name)[0]
                session = ReviewSession(voice_dataset_loader.read_dataset(folder), back)
                known = times, make_application(session, admit=lambda _: True)  # the studio's guard has admitted the request
            self._open[name] = known
            for oldest in list(self._open)[:-MOST]:
                del self._open[oldest]
            return known[1]
