"""State that a run of codec_lm stores with each checkpoint: family and codec, the speakers, the data and the base."""

from __future__ import annotations

from overtone.finetune.storage.json_schema import JsonPart
from overtone.recipes.speech.voices_json_schema import TrainedSpeaker, TrainedVoices

from .families import Family


class SpeakerOfLanguage(TrainedSpeaker):
    """A trained speaker with the language of the clips, "auto" if it is not known."""

    language: str

    @property
    def spoken_language(self) -> str:
        return self.language


class CodecRecord(JsonPart):
    """The codec of the dataset."""

    source: str | None
    """`options.codec`."""
    digest: str


class CodecLmState(TrainedVoices[SpeakerOfLanguage]):
    """The recipe state."""

    family: Family
    supervise: str
    codec: CodecRecord
