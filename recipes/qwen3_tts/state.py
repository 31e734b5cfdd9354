"""State that a run of voice_clone stores with each checkpoint: the speakers, each with its row of the codec embedding, the data and the
base."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from overtone.recipes.speech.voices_json_schema import TrainedSpeaker, TrainedVoices


class SpeakerRecord(TrainedSpeaker):
    """A trained speaker with its row of the codec embedding."""

    row: Annotated[int, Field(ge=0)]
    language: str | None

    @property
    def spoken_language(self) -> str | None:
        return self.language


class VoiceCloneState(TrainedVoices[SpeakerRecord]):
    """The recipe state, and the content of voices.json in an export."""

    @property
    def further_training(self) -> str:
        """A paragraph of the card about training after that on recordings; empty if there was none."""
        return ""
