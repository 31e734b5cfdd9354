"""The speakers of the base, an exported voice: their names, and their vectors in its codec embedding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from torch import Tensor

from overtone.data_prep.audio_codecs.partial_weights import read_partial_weights
from overtone.data_prep.audio_codecs.qwen_tts_import import VOICE_MODEL
from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_security import check_config
from overtone.recipes.qwen3_tts.exporting.export_plan import CODEC_EMBEDDING
from overtone.recipes.qwen3_tts.state import SpeakerRecord
from overtone.recipes.speech.voices_json_schema import VOICES, TrainingData, read_voices


class BaseRecord(BaseModel):
    """The keys of a base's voices.json that this recipe reads; the export of each recipe has more."""

    speakers: list[SpeakerRecord]
    data: TrainingData


@dataclass(frozen=True)
class BaseVoices:
    """An exported voice without its weights."""

    config: dict[str, Any]
    """Content of config.json."""
    speakers: list[SpeakerRecord]
    data: TrainingData
    """The recordings that the voices were trained on."""

    @property
    def rows(self) -> list[int]:
        """The speakers' rows of the codec embedding."""
        return [speaker.row for speaker in self.speakers]

    @property
    def hidden_size(self) -> int:
        """Length of a speaker's vector."""
        return int(self.config["talker_config"]["hidden_size"])


def read_base_voices(base: Path) -> BaseVoices:
    """Read an export of voice_clone or voice_dpo in either format. Raises `UserError` for a model without trained voices: pairs are
    spoken by the voice that learns from them."""
    config = check_config(base, VOICE_MODEL)
    content = read_voices(base)
    if not content.get("speakers"):
        raise UserError(
            f"model.source {base}: it has no trained voices ({VOICES}); give the export of a voice_clone run, which spoke the clips"
        )
    try:
        record = BaseRecord.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise UserError(f"{base / VOICES}: not that of a Qwen3-TTS voice ({name}: {first['msg']}); export the run again") from None
    return BaseVoices(config, record.speakers, record.data)


def read_speaker_vectors(base: Path, rows: list[int]) -> Tensor:
    """The vectors [speakers, H] fp32 in these rows of the codec embedding. Raises `UserError` if the weights lack them."""
    table = read_partial_weights(sorted(base.glob("*.safetensors")), CODEC_EMBEDDING).get("")
    if table is None or not rows or max(rows) >= len(table):
        raise UserError(f"{base}: its weights have no vectors of the speakers in {VOICES}; export the run again")
    return table[rows].float()
