"""State that a run of csm stores with each checkpoint: the speakers, each with its number in the prompt, the data, the base, and the
context."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer

from overtone.finetune.storage.json_schema import JsonPart
from overtone.recipes.speech.voices_json_schema import TrainedSpeaker, TrainedVoices


class CsmSpeaker(TrainedSpeaker):
    """A trained speaker with its number in the prompt."""

    id: Annotated[int, Field(ge=0)]


class NumberedSpeaker(JsonPart):
    """A speaker, as another training reads it."""

    name: str
    id: Annotated[int, Field(ge=0)]


class NumberedVoices(JsonPart):
    """The voices.json of a base, as another training reads it."""

    speakers: list[NumberedSpeaker]


class CsmContext(JsonPart):
    """The clips before a clip, of a run with `options.context_turns`."""

    turns: Annotated[int, Field(ge=1)]
    """Maximum number of earlier clips."""
    loss: str
    clips: Annotated[int, Field(ge=1)]
    """Clips with context."""
    seconds: Annotated[float, Field(ge=0)]
    """Mean context, in seconds."""


class CsmState(TrainedVoices[CsmSpeaker]):
    """The recipe state, and the content of voices.json in an export."""

    context: CsmContext | None = None
    """Absent in the file for a run without context."""

    @model_serializer(mode="wrap")
    def _leave_out_absent_context(self, dump: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        return {name: value for name, value in dump(self).items() if (name, value) != ("context", None)}

    def numbers(self) -> dict[str, int]:
        """Name → number in the prompt."""
        return {speaker.name: speaker.id for speaker in self.speakers}
