"""An exported folder without its weights: its family, speakers, sampling settings and tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from overtone.data_prep import manifest
from overtone.recipes.speech import request_checks
from overtone.recipes.speech.interface import SpeechRequest
from overtone.recipes.speech.trained_voices_folder import TrainedVoicesFolder, read_languages, read_positions

from ..families import Family, choose_family
from ..model.sampling_settings import SCHEME

if TYPE_CHECKING:
    from ..model.sequence_layout import SpeechTextProcessor


@dataclass(frozen=True)
class ExportedSpeechTokens(TrainedVoicesFolder):
    """A folder written by `overtone export`, or a released model. Implements `overtone.recipes.speech.interface.VoiceFolder`, without
    `open`."""

    family: Family

    @classmethod
    def inspect(cls, folder: Path) -> Self:
        """Read the folder. Raises `UserError` if it is not a language model."""
        from overtone.recipes.language.modeling.causal_model import causal_language_model
        from overtone.recipes.language.tokenization.tokenizer import load_tokenizer

        config = request_checks.check_model_config(folder, causal_language_model())
        family = choose_family(folder, lambda: load_tokenizer(folder, None).get_vocab(), None)
        languages = read_languages(folder) or dict.fromkeys(family.voices, manifest.AUTO)
        settings = {**family.sampling, **SCHEME.read_model_settings(folder)}
        return cls(folder, settings, languages, read_positions(config, folder), family)

    @cached_property
    def processor(self) -> SpeechTextProcessor:
        """The tokenizer with the family's tokens."""
        from overtone.recipes.language.tokenization.tokenizer import load_tokenizer

        from ..model.sequence_layout import SpeechTextProcessor, find_token_ids

        tokenizer = load_tokenizer(self.folder, None)
        return SpeechTextProcessor(tokenizer, self.family, find_token_ids(tokenizer, self.family, self.folder), self.positions)

    def count_tokens(self, text: str, request: SpeechRequest) -> int:
        """Implements `SpeechFolder`."""
        return len(self.make_prompt(text, request.speaker))

    def make_prompt(self, text: str, speaker: str | None) -> list[int]:
        """The token ids of a text in the voice of a speaker, up to the place where speech begins."""
        from ..model.sequence_layout import tokenize_prompt

        return tokenize_prompt(text, self.find_speaker(speaker), self.processor)
