"""`voices.json` of an export, and the recipe state of a checkpoint, from which it is written: trained speakers, their data and base."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field

from overtone.finetune.recipe import RecipeState
from overtone.finetune.storage.json_schema import JsonPart
from overtone.finetune.storage.strict_json import read_object

VOICES = "voices.json"
"""File of an export with its speakers and their data: the content of README.md for `generate` and other programs."""


class TrainedSpeaker(JsonPart):
    """A trained speaker. A recipe adds what its models need."""

    name: str
    clips: Annotated[int, Field(ge=0)]
    seconds: Annotated[float, Field(ge=0)]

    @property
    def spoken_language(self) -> str | None:
        """English name in lower case; None if the recipe does not record it."""
        return None


class SpeakerOfLanguage(TrainedSpeaker):
    """A trained speaker with the language of the clips, "auto" if it is not known."""

    language: str

    @property
    def spoken_language(self) -> str:
        return self.language


class TrainingData(JsonPart):
    """The training data."""

    name: str
    sha256: str
    clips: Annotated[int, Field(ge=0)]


class BaseModelName(JsonPart):
    """The base model."""

    name: str
    revision: str | None


SpeakerT = TypeVar("SpeakerT", bound=TrainedSpeaker)


class TrainedVoices(RecipeState, Generic[SpeakerT]):
    """The recipe state of a speech model. A recipe adds what its export needs."""

    speakers: Annotated[list[SpeakerT], Field(min_length=1)]
    data: TrainingData
    base: BaseModelName


def read_voices(folder: Path) -> dict[str, Any]:
    """`VOICES` of an export; empty for other models. Raises `UserError` if it is not a JSON object."""
    path = folder / VOICES
    return read_object(path) if path.is_file() else {}
