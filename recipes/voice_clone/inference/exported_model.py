"""What an exported folder says about itself before its weights are read: its kind, its speakers, their languages, its text tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep import manifest
from data_prep.audio_codecs.qwen_tts_import import VOICE_MODEL
from finetune.errors import UserError
from finetune.storage.model_security import check_config
from finetune.storage.strict_json import read_object

from ..model import sampling_settings

if TYPE_CHECKING:
    from ..model.sequence_layout import Ids, Processor


@dataclass(frozen=True)
class Exported:
    """A folder that `finetune export` made, or a released model."""

    folder: Path
    config: dict[str, Any]
    trained: dict[str, Any]
    """State of the run that it was exported from; empty for a model from elsewhere."""
    generation: dict[str, Any] = field(default_factory=dict)
    """How its codes are to be sampled, as far as it says so."""

    @classmethod
    def of(cls, folder: Path) -> Exported:
        """Read what the folder holds. Raises `UserError` if the folder is no Qwen3-TTS model that can be spoken with here."""
        from ..exporting.exported_files import VOICES

        try:
            config = check_config(folder, VOICE_MODEL)
        except UserError as error:
            raise UserError(f"--model {folder}: {error}; `python -m finetune export RUN --to {folder}` makes one") from None
        if (kind := config.get("tts_model_type")) not in ("custom_voice", "base"):
            raise UserError(f"--model {folder}: tts_model_type {kind!r} is no voice to speak with; export a run of the voice_clone recipe")
        voices = folder / VOICES
        trained = read_object(voices) if voices.is_file() else {}
        return cls(folder, config, trained, sampling_settings.own(folder))

    @property
    def is_base(self) -> bool:
        return self.config["tts_model_type"] == "base"

    @property
    def speakers(self) -> dict[str, int]:
        """Lower-case name → row of the codec embedding."""
        return {name.lower(): row for name, row in (self.config["talker_config"].get("spk_id") or {}).items()}

    @cached_property
    def ids(self) -> Ids:
        from ..model.sequence_layout import Ids

        return Ids.of(self.config)

    @cached_property
    def processor(self) -> Processor:
        """The text tokenizer, as the stock package loads it, with the model's ids."""
        from ..model.sequence_layout import Processor, load_tokenizer

        return Processor(load_tokenizer(self.folder), self.ids, self.speakers)

    def speaker(self, given: str | None) -> str:
        """The speaker to use: the given one, or the only one. Raises `UserError` that lists what exists."""
        known = ", ".join(sorted(self.speakers)) or "none"
        if given is None:
            if len(self.speakers) > 1:
                raise UserError(f"--speaker is missing; {self.folder} has several: {known}")
            if not self.speakers:
                raise UserError(f"{self.folder} knows no speaker by name; give --reference clip.wav of the voice to clone")
            return next(iter(self.speakers))
        name = manifest.parse_speaker(given)
        if name not in self.speakers:
            raise UserError(f"--speaker {given}: {self.folder} does not know that voice; it has {known}")
        return name

    def dialect(self, speaker: str | None) -> int | None:
        """Codec id of the dialect that a preset of a `custom_voice` model speaks, or None."""
        talker = self.config["talker_config"]
        spoken = {name.lower(): dialect for name, dialect in (talker.get("spk_is_dialect") or {}).items()}.get(speaker or "")
        return talker["codec_language_id"][spoken] if spoken and not self.is_base else None

    def language(self, given: str | None, speaker: str | None) -> str:
        """The language to announce: the given one, or the one that the speaker was trained with, or `auto`."""
        from ..model.sequence_layout import language_of

        spoken = {entry["name"]: entry["language"] for entry in self.trained.get("speakers", [])}
        wanted = given if given is not None else spoken.get(speaker or "")
        return language_of({"language": wanted}, self.ids) or manifest.AUTO
