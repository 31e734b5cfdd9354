"""An exported folder without its weights: its kind, speakers, their languages, sampling settings and text tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from overtone.data_prep import manifest
from overtone.data_prep.audio_codecs.qwen_tts_import import VOICE_MODEL
from overtone.finetune.errors import UserError
from overtone.recipes.speech import request_checks
from overtone.recipes.speech.exported_speech_folder import SpeechFolder
from overtone.recipes.speech.interface import SpeechRequest
from overtone.recipes.speech.voices_json_schema import read_voices

from ..model.sampling_settings import SCHEME

if TYPE_CHECKING:
    from ..model.sequence_layout import SpeechProcessor, TokenIds


@dataclass(frozen=True)
class ExportedModel(SpeechFolder):
    """A folder written by `overtone export`, or a released model. Implements `overtone.recipes.speech.interface.VoiceFolder`, without
    `open`."""

    config: dict[str, Any]
    trained: dict[str, Any]
    """The recipe state of the run that it was exported from; empty for other models."""

    @classmethod
    def inspect(cls, folder: Path) -> Self:
        """Read the folder. Raises `UserError` if it is not a Qwen3-TTS model that can speak here."""
        config = request_checks.check_model_config(folder, VOICE_MODEL)
        if (kind := config.get("tts_model_type")) not in ("custom_voice", "base"):
            raise UserError(
                f"--model {folder}: tts_model_type {kind!r} is not a model that can speak here; export a run of the voice_clone recipe"
            )
        return cls(folder, SCHEME.read_model_settings(folder), config, read_voices(folder))

    @property
    def can_clone(self) -> bool:
        """True if it clones from a reference clip."""
        return self.config["tts_model_type"] == "base"

    @property
    def speakers(self) -> dict[str, int]:
        """Lower-case name → row of the codec embedding."""
        return {name.lower(): row for name, row in (self.config["talker_config"].get("spk_id") or {}).items()}

    @cached_property
    def ids(self) -> TokenIds:
        """The ids in its config."""
        from ..model.sequence_layout import TokenIds

        return TokenIds.from_config(self.config)

    @cached_property
    def processor(self) -> SpeechProcessor:
        """The text tokenizer, as the stock package loads it, with the model's ids."""
        from ..model.sequence_layout import SpeechProcessor, load_tokenizer

        return SpeechProcessor(load_tokenizer(self.folder), self.ids, self.speakers)

    @property
    def first_speaker(self) -> str | None:
        """The first trained speaker: the base's own come before it."""
        return next((speaker["name"] for speaker in self.trained.get("speakers", [])), None)

    @property
    def longest_text(self) -> int:
        """Implements `SpeechFolder`. A spoken token rarely takes less than one frame."""
        return self.ids.positions // 2

    def count_tokens(self, text: str, request: SpeechRequest) -> int:  # noqa: ARG002 - of the base class
        """Implements `SpeechFolder`."""
        from ..model.sequence_layout import tokenize_text

        return len(tokenize_text(text, self.processor))

    def check_reference(self, request: SpeechRequest) -> None:
        """Raises `UserError` unless the folder is a base export, the clip exists, and the request names no speaker."""
        if not self.can_clone:
            raise UserError(f"--reference: {self.folder} is a custom_voice export and has no speaker encoder; export with --format base")
        super().check_reference(request)

    def dialect(self, speaker: str | None) -> int | None:
        """Codec id of the dialect that a preset of a `custom_voice` model speaks, or None."""
        talker = self.config["talker_config"]
        dialect = {name.lower(): dialect for name, dialect in (talker.get("spk_is_dialect") or {}).items()}.get(speaker or "")
        return talker["codec_language_id"][dialect] if dialect and not self.can_clone else None

    def choose_language(self, given: str | None, speaker: str | None) -> str:
        """The language for the prompt: the given one, else the one that the speaker was trained in, else `auto`."""
        from ..model.sequence_layout import find_language

        trained = {entry["name"]: entry["language"] for entry in self.trained.get("speakers", [])}
        chosen = given if given is not None else trained.get(speaker or "")
        return find_language({"language": chosen}, self.ids) or manifest.AUTO
