"""Checks of a request that do not depend on the model, and of the model's folder: each raises `UserError`, which names the option and the
valid values."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from overtone.data_prep import manifest
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_security import Kind, check_config

from .interface import SpeechRequest
from .spoken_text import has_speech


def check_model_config(folder: Path, kind: Kind) -> dict[str, Any]:
    """The config of a model of this kind, as `check_config` admits it. Raises `UserError` for other folders."""
    try:
        return check_config(folder, kind)
    except UserError as error:
        raise UserError(f"--model {folder}: {error}; `{overtone_command('export', 'RUN', '--to', folder)}` creates a model") from None


def check_text(request: SpeechRequest) -> None:
    """Raises `UserError` for a text with nothing to speak."""
    if not has_speech(request.text):
        raise UserError(f'the text {request.text[:40]!r} has nothing to speak; give words, as in --text "Hello, this is my voice."')


def check_length(text: str, tokens: int, most: int) -> None:
    """Raises `UserError` for a text of more tokens than the model takes."""
    if tokens > most:
        raise UserError(f"a text of {tokens} tokens is too long for this model, which takes {most}; shorten it: {text[:60]!r} …")


def check_clip(request: SpeechRequest) -> None:
    """Raises `UserError` if the reference clip does not exist, or the request names a speaker too."""
    if request.speaker is not None:
        raise UserError("--speaker and --reference each choose a voice; give one of them")
    if request.reference is not None and not request.reference.is_file():
        raise UserError(f"--reference {request.reference}: no such file")


def find_speaker(given: str | None, speakers: Collection[str], folder: Path) -> str:
    """The given one of the `speakers` (names in lower case), or the only one. Raises `UserError` that lists them."""
    known = ", ".join(sorted(speakers)) or "none"
    if given is None:
        if len(speakers) > 1:
            raise UserError(f"--speaker is missing; {folder} has several speakers: {known}")
        if not speakers:
            raise UserError(f"{folder} has no named speakers; give --reference clip.wav of the voice to clone")
        return next(iter(speakers))
    name = manifest.parse_speaker(given)
    if name not in speakers:
        raise UserError(f"--speaker {given}: {folder} does not have this speaker; it has {known}")
    return name
