"""An exported folder without its weights: its family, speakers, sampling settings and tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from overtone.data_prep import manifest
from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_security import CONFIG
from overtone.recipes.speech import request_checks
from overtone.recipes.speech.interface import SpeechRequest
from overtone.recipes.speech.voices_json_schema import VOICES, read_voices

from ..families import Family, choose_family
from ..model.sampling_settings import SCHEME

if TYPE_CHECKING:
    from ..model.sequence_layout import SpeechTextProcessor


@dataclass(frozen=True)
class ExportedSpeechTokens:
    """A folder written by `overtone export`, or a released model. Implements `overtone.recipes.speech.interface.VoiceFolder`, without
    `open`."""

    folder: Path
    family: Family
    languages: dict[str, str]
    """Speaker → language of the training data, "auto" if it is not known. Trained speakers in their order, or those of a released model."""
    generation: dict[str, Any]
    """Its own sampling settings."""
    positions: int
    can_clone: bool = False

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
        return cls(folder, family, languages, SCHEME.read_model_settings(folder), positions)

    @cached_property
    def processor(self) -> SpeechTextProcessor:
        """The tokenizer with the family's tokens."""
        from overtone.recipes.language.tokenization.tokenizer import load_tokenizer

        from ..model.sequence_layout import SpeechTextProcessor, find_token_ids

        tokenizer = load_tokenizer(self.folder, None)
        return SpeechTextProcessor(tokenizer, self.family, find_token_ids(tokenizer, self.family, self.folder), self.positions)

    @property
    def first_speaker(self) -> str | None:
        """The first of the speakers."""
        return next(iter(self.languages), None)

    def check(self, request: SpeechRequest) -> None:
        """Raise `UserError`, which lists the valid values, for a request that the model cannot speak."""
        request_checks.check_text(request)
        if request.reference is not None:
            raise UserError(
                "--reference: this model speaks only with its trained voices, and cannot clone one; give one of its speakers: "
                f"{', '.join(self.languages)}"
            )
        self.check_language(request.language, request.speaker)
        # Speech takes more positions than its text.
        request_checks.check_length(request.text, len(self.make_prompt(request)), self.positions // 2)

    def check_language(self, language: str | None, speaker: str | None) -> None:
        """Raise `UserError` for a language other than that of the speaker's training data: the prompt has none."""
        trained = self.languages[self.check_speaker(speaker)]
        given = manifest.AUTO if language is None else manifest.LANGUAGES.get(language.strip().lower(), language.strip().lower())
        if given not in (manifest.AUTO, trained):
            known = "" if trained == manifest.AUTO else f", {trained}"
            raise UserError(f"--language {language}: this model takes no language; it speaks that of its training data{known}; remove it")

    def complete(self, request: SpeechRequest) -> SpeechRequest:
        """With its speaker, and the language of the speaker's training data if that is known."""
        speaker = self.find_speaker(request)
        language = self.languages[speaker]
        return replace(request, speaker=speaker, language=None if language == manifest.AUTO else language)

    def make_prompt(self, request: SpeechRequest) -> list[int]:
        """The token ids of a request, up to the place where speech begins."""
        from ..model.sequence_layout import tokenize_prompt

        return tokenize_prompt(request.text, self.find_speaker(request), self.processor)

    def find_speaker(self, request: SpeechRequest) -> str:
        """The speaker of a request. Raises `UserError` that lists the speakers."""
        return self.check_speaker(request.speaker)

    def check_speaker(self, given: str | None) -> str:
        """The given speaker, or the only one. Raises `UserError` that lists them."""
        if not self.languages:
            raise UserError(f"{self.folder} names no speakers; train it on a voice, and speak with the export")
        return request_checks.find_speaker(given, self.languages, self.folder)


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
