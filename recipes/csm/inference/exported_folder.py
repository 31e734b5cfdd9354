"""An exported or released CSM folder without its weights: speakers, sampling settings, tokenizer, and which requests it can speak."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import JsonValue

from overtone.data_prep import manifest
from overtone.finetune.errors import UserError
from overtone.recipes.speech import request_checks
from overtone.recipes.speech.interface import SpeechRequest

from ..model.sampling_settings import SCHEME

if TYPE_CHECKING:
    from ..model.sequence_layout import CsmProcessing

LANGUAGE = "english"
"""CSM's only language; the prompt does not name it."""
RELEASED_SPEAKERS = {"0": 0, "1": 1}
"""Speakers of a model without a list of its own: the numbers of the makers' examples. Each is a voice that differs from text to text."""


@dataclass(frozen=True)
class ExportedCsm:
    """Implements `overtone.recipes.speech.interface.VoiceFolder`, without `open`."""

    folder: Path
    speakers: dict[str, int]
    """Lower-case name → number in the prompt."""
    generation: dict[str, JsonValue]
    """Its own sampling settings; see `SamplingScheme.read_model_settings`."""
    can_clone: bool = True

    @classmethod
    def inspect(cls, folder: Path) -> Self:
        """Raises `UserError` if the folder is not a CSM model."""
        from ..model.dataset_speakers import read_known_numbers
        from ..model.model_config import CSM

        request_checks.check_model_config(folder, CSM)
        return cls(folder, read_known_numbers(folder) or RELEASED_SPEAKERS, SCHEME.read_model_settings(folder))

    @cached_property
    def processor(self) -> CsmProcessing:
        """The text tokenizer with the model's ids."""
        from ..model.model_config import read_config
        from ..model.sequence_layout import CsmProcessing, CsmTokens, load_tokenizer

        tokens = CsmTokens.from_config(read_config(self.folder))
        return CsmProcessing(load_tokenizer(self.folder, tokens), tokens, self.speakers)

    @property
    def first_speaker(self) -> str | None:
        """The first of the trained speakers."""
        return next(iter(self.speakers)) if self.speakers is not RELEASED_SPEAKERS else None

    @property
    def free_number(self) -> int:
        """Number in the prompt for a cloned voice: not that of a trained speaker, with whom the model would mix it."""
        taken = () if self.speakers is RELEASED_SPEAKERS else self.speakers.values()
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def check(self, request: SpeechRequest) -> None:
        """Raise `UserError`, which lists the valid values, for a request that the folder cannot speak."""
        request_checks.check_text(request)
        check_language(request.language)
        if request.reference is None:
            request_checks.find_speaker(request.speaker, self.speakers, self.folder)
        else:
            request_checks.check_clip(request)
            if not (request.reference_text or "").strip():
                raise UserError(
                    f"--reference {request.reference}: its transcript is missing, which CSM needs to clone a voice; give "
                    "--reference-text, or ref_text in a row"
                )
        for text in (request.text, request.reference_text):
            if text is not None:
                request_checks.check_length(text, len(self.tokenize(text, 0)), self.processor.tokens.positions // 2)

    def complete(self, request: SpeechRequest) -> SpeechRequest:
        speaker = request_checks.find_speaker(request.speaker, self.speakers, self.folder) if request.reference is None else None
        return replace(request, speaker=speaker, language=LANGUAGE)

    def tokenize(self, text: str, number: int) -> list[int]:
        """Ids of the turn in which speaker `number` says a text, up to the first frame. Raises `UserError` for special tokens in it."""
        from ..model.sequence_layout import tokenize_prompt

        return tokenize_prompt(text, number, self.processor.tokenizer)


def check_language(language: str | None) -> None:
    """Raise `UserError` for a language other than English."""
    if language is not None and manifest.parse_language(language) not in (LANGUAGE, manifest.AUTO):
        raise UserError(f"language {language!r}: CSM speaks only {LANGUAGE}; remove it")
