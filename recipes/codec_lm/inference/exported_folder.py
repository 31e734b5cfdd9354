"""An exported folder without its weights: its family, speakers, sampling settings and tokenizer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from overtone.data_prep import manifest
from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_security import CONFIG
from overtone.recipes.speech import request_checks
from overtone.recipes.speech.exported_speech_folder import SpeechFolder
from overtone.recipes.speech.interface import SpeechRequest
from overtone.recipes.speech.voices_json_schema import VOICES, read_voices

from ..families import Family, choose_family
from ..model.sampling_settings import SCHEME

if TYPE_CHECKING:
    from ..model.sequence_layout import SpeechTextProcessor


@dataclass(frozen=True)
class ExportedSpeechTokens(SpeechFolder):
    """A folder written by `overtone export`, or a released model. Implements `overtone.recipes.speech.interface.VoiceFolder`, without
    `open`."""

    family: Family
    languages: dict[str, str]
    """Speaker → language of the training data, "auto" if it is not known. Trained speakers in their order, or those of a released model."""
    positions: int

    @classmethod
    def inspect(cls, folder: Path) -> Self:
        """Read the folder. Raises `UserError` if it is not a language model."""
        from overtone.recipes.language.modeling.causal_model import causal_language_model
        from overtone.recipes.language.tokenization.tokenizer import load_tokenizer

        config = request_checks.check_model_config(folder, causal_language_model())
        family = choose_family(folder, lambda: load_tokenizer(folder, None).get_vocab(), None)
        languages = read_languages(folder) or dict.fromkeys(family.voices, manifest.AUTO)
        positions = config.get("max_position_embeddings")
        if type(positions) is not int or positions < 1:
            raise UserError(f"{folder / CONFIG}: max_position_embeddings {positions!r}: expected at least 1; export the model again")
        return cls(folder, {**family.sampling, **SCHEME.read_model_settings(folder)}, family, languages, positions)

    @cached_property
    def processor(self) -> SpeechTextProcessor:
        """The tokenizer with the family's tokens."""
        from overtone.recipes.language.tokenization.tokenizer import load_tokenizer

        from ..model.sequence_layout import SpeechTextProcessor, find_token_ids

        tokenizer = load_tokenizer(self.folder, None)
        return SpeechTextProcessor(tokenizer, self.family, find_token_ids(tokenizer, self.family, self.folder), self.positions)

    @property
    def speakers(self) -> Collection[str]:
        """Implements `SpeechFolder`."""
        return self.languages

    @property
    def longest_text(self) -> int:
        """Implements `SpeechFolder`. Speech takes more positions than its text."""
        return self.positions // 2

    def count_tokens(self, text: str, request: SpeechRequest) -> int:
        """Implements `SpeechFolder`."""
        return len(self.make_prompt(text, request.speaker))

    def choose_language(self, given: str | None, speaker: str | None) -> str | None:
        """The language of the speaker's training data if it is known. Raises `UserError` for another one: the prompt has none."""
        trained = self.languages[self.find_speaker(speaker)]
        asked = manifest.AUTO if given is None else manifest.LANGUAGES.get(given.strip().lower(), given.strip().lower())
        if asked not in (manifest.AUTO, trained):
            known = "" if trained == manifest.AUTO else f", {trained}"
            raise UserError(f"--language {given}: this model takes no language; it speaks that of its training data{known}; remove it")
        return None if trained == manifest.AUTO else trained

    def make_prompt(self, text: str, speaker: str | None) -> list[int]:
        """The token ids of a text in the voice of a speaker, up to the place where speech begins."""
        from ..model.sequence_layout import tokenize_prompt

        return tokenize_prompt(text, self.find_speaker(speaker), self.processor)

    def find_speaker(self, given: str | None) -> str:
        """The given speaker, or the only one. Raises `UserError` that lists them."""
        if not self.languages:
            raise UserError(f"{self.folder} names no speakers; train it on a voice, and speak with the export")
        return super().find_speaker(given)


def read_languages(folder: Path) -> dict[str, str]:
    """Trained speaker → language, by `voices.json`; empty if there is no such file, or it lists no speakers. Raises `UserError` for a
    damaged one."""
    speakers = read_voices(folder).get("speakers") or []
    parts = ("name", "language")
    if not isinstance(speakers, list) or not all(
        isinstance(one, dict) and all(isinstance(one.get(part), str) for part in parts) for one in speakers
    ):
        raise UserError(f"{folder / VOICES}: speakers: expected a list with a name and a language for each; export the model again")
    return {one["name"]: one["language"] for one in speakers}
