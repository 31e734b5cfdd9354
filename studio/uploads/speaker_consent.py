"""The consent of the people who speak in a folder of recordings. It is a file in that folder, so that it stays with the data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files, strict_json

CONSENT = "speaker_consent.json"
Ground = Literal["own", "agreed", "public"]
TEXTS: dict[Ground, str] = {
    "own": "This is my own voice.",
    "agreed": "Everybody who speaks in these recordings has agreed that a model learns and imitates their voice.",
    "public": "The license of these recordings permits that a model learns and imitates the voices in them.",
}
"""Grounds on which a person may train a voice, with their text."""


class SpeakerConsent(BaseModel, extra="forbid"):
    """The content of the file."""

    who: str = Field(min_length=1, max_length=200)
    """The person who gave it: a name, an address, or initials."""
    when: str
    """UTC, as in 2026-01-31T12:00:00Z."""
    text: str
    """The sentence that was confirmed."""


def read_consent(folder: Path) -> SpeakerConsent | None:
    """Return the consent in a folder; None if there is no file. Raises `UserError` for one that cannot be read."""
    path = folder / CONSENT
    if not path.exists() and not path.is_symlink():
        return None
    try:
        return SpeakerConsent.model_validate(strict_json.loads(input_files.read_bytes(path, 2**16)))
    except (OSError, ValueError) as error:  # pydantic's error is a ValueError
        raise UserError(f"{path} is not a consent that the studio wrote; remove the file and give the consent again") from error


def require_consent(place: Path, folder: str) -> None:
    """Raise `UserError` for a folder of recordings without consent. `folder`: relative to `place`, the studio's folder."""
    if read_consent(place / folder) is None:
        raise UserError(f"{folder} has no {CONSENT}; open the folder's page and give the consent of the speaker first")


def write_consent(folder: Path, who: str, ground: Ground) -> None:
    """Write the consent into a folder. Raises `UserError` if there is one."""
    consent = SpeakerConsent(who=who, when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), text=TEXTS[ground])
    with files.explain_write_errors(folder):
        is_new = files.write_if_absent(folder / CONSENT, files.json_bytes(consent.model_dump()))
    if not is_new:
        raise UserError(f"{folder / CONSENT} exists; reload the page")
