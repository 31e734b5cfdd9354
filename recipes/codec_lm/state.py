"""State that a run of codec_lm stores with each checkpoint: family and codec, the speakers, the data and the base."""

from __future__ import annotations

from overtone.recipes.speech.run_codec import CodecRecord
from overtone.recipes.speech.voices_json_schema import SpeakerOfLanguage, TrainedVoices

from .families import Family


class CodecLmState(TrainedVoices[SpeakerOfLanguage]):
    """The recipe state."""

    family: Family
    supervise: str
    codec: CodecRecord
