"""An exported or released CSM folder without its weights: speakers, sampling settings, tokenizer, and which requests it can speak."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from overtone.data_prep import manifest
from overtone.finetune.errors import UserError
from overtone.recipes.speech import request_checks
from overtone.recipes.speech.exported_speech_folder import SpeechFolder
from overtone.recipes.speech.interface import SpeechRequest

from ..model.sampling_settings import SCHEME

if TYPE_CHECKING:
    from ..model.sequence_layout import CsmProcessing

LANGUAGE = "english"
"""CSM's only language; the prompt does not name it."""
RELEASED_SPEAKERS = {"0": 0, "1": 1}
"""Speakers of a model without a list of its own: the numbers of the makers' examples. Each is a voice that differs from text to text."""


@dataclass(frozen=True)
class ExportedCsm(SpeechFolder):
    """Implements `overtone.recipes.speech.interface.VoiceFolder`, without `open`."""

    numbers: dict[str, int]
    """Lower-case name of a speaker → number in the prompt."""

    @classmethod
    def inspect(cls, folder: Path) -> Self:
        """Raises `UserError` if the folder is not a CSM model."""
        from ..model.dataset_speakers import read_known_numbers
        from ..model.model_config import CSM

        request_checks.check_model_config(folder, CSM)
        return cls(folder, SCHEME.read_model_settings(folder), read_known_numbers(folder) or RELEASED_SPEAKERS)

    @cached_property
    def processor(self) -> CsmProcessing:
        """The text tokenizer with the model's ids."""
        from ..model.model_config import read_config
        from ..model.sequence_layout import CsmProcessing, CsmTokens, load_tokenizer

        tokens = CsmTokens.from_config(read_config(self.folder))
        return CsmProcessing(load_tokenizer(self.folder, tokens), tokens, self.numbers)

    @property
    def speakers(self) -> Collection[str]:
        """Implements `SpeechFolder`."""
        return self.numbers

    @property
    def can_clone(self) -> bool:
        """Implements `SpeechFolder`."""
        return True

    @property
    def first_speaker(self) -> str | None:
        """The first of the trained speakers."""
        return super().first_speaker if self.numbers is not RELEASED_SPEAKERS else None

    @property
    def longest_text(self) -> int:
        """Implements `SpeechFolder`."""
        return self.processor.tokens.positions // 2

    @property
    def free_number(self) -> int:
        """Number in the prompt for a cloned voice: not that of a trained speaker, with whom the model would mix it."""
        taken = () if self.numbers is RELEASED_SPEAKERS else self.numbers.values()
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def check_reference(self, request: SpeechRequest) -> None:
        """Raises `UserError` for a clip that cannot be used, and for one without its transcript."""
        super().check_reference(request)
        if not (request.reference_text or "").strip():
            raise UserError(
                f"--reference {request.reference}: its transcript is missing, which CSM needs to clone a voice; give "
                "--reference-text, or ref_text in a row"
            )

    def choose_language(self, given: str | None, speaker: str | None) -> str:  # noqa: ARG002 - of the base class
        """English. Raises `UserError` for another language."""
        if given is not None and manifest.parse_language(given) not in (LANGUAGE, manifest.AUTO):
            raise UserError(f"language {given!r}: CSM speaks only {LANGUAGE}; remove it")
        return LANGUAGE

    def count_tokens(self, text: str, request: SpeechRequest) -> int:  # noqa: ARG002 - of the base class
        """Implements `SpeechFolder`."""
        return len(self.tokenize(text, 0))

    def tokenize(self, text: str, number: int) -> list[int]:
        """Ids of the turn in which speaker `number` says a text, up to the first frame. Raises `UserError` for special tokens in it."""
        from ..model.sequence_layout import tokenize_prompt

        return tokenize_prompt(text, number, self.processor.tokenizer)
