"""The page that records takes with the microphone, each along a sentence that is shown. A take is a WAV file with its text beside it."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Endpoint

from overtone.finetune.pages.request_validation import RequestError, Route
from overtone.finetune.storage import input_files
from overtone.studio.folder_content import find_inside
from overtone.studio.page_interface import FOLDER, Page, Studio, is_short, link_to
from overtone.studio.uploads.speaker_consent import CONSENT, read_consent
from overtone.studio.uploads.upload_folders import list_held_files

SENTENCES = Path(__file__).parent.parent / "sentences"
"""One file of sentences for each language, named by its code."""
TAKES = "take_"
"""Beginning of the names of takes; the rest is the beginning of the SHA-256 of the sentence, so that a take belongs to one sentence."""


def make_page(studio: Studio) -> Page:
    """Return the page."""
    lists = {path.stem: input_files.read_text(path).strip().split("\n") for path in sorted(SENTENCES.glob("*.txt"))}

    def show(request: Request) -> Response:
        name = request.query_params.get("folder", "")
        folder = find_inside(studio.place, name)
        if read_consent(folder) is None:
            raise RequestError(
                400, f"{name} has no {CONSENT}; open the folder's page and give the consent of the speaker first", "no_consent"
            )
        takes = [one.name for one in list_held_files(folder) if one.name.startswith(TAKES)]
        back = link_to("Back to the folder", "/voice/folder", folder=name)
        return studio.render("microphone_page.html", "", folder=name, lists=lists, takes=takes, prefix=TAKES, back=back)

    return Page(
        routes=(Route("GET", "/voice/microphone", query={"folder": is_short}),),
        endpoints=(Endpoint("/voice/microphone", show),),
        assets=(FOLDER / "microphone_page.js", FOLDER / "microphone_worklet.js"),
    )
