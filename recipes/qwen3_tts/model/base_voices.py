"""A base that is an exported voice, which learns from its own speech: its speakers, and the model to train."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from torch import Tensor

from overtone.data_prep.audio_codecs.partial_weights import read_partial_weights
from overtone.data_prep.audio_codecs.qwen_tts_import import VOICE_MODEL
from overtone.finetune.config import Lora
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.lora_adapters import is_targeted
from overtone.finetune.recipe import Loaded
from overtone.finetune.storage.construction_limits import limit_construction
from overtone.finetune.storage.model_security import check_config
from overtone.recipes.qwen3_tts.exporting.export_plan import CODEC_EMBEDDING
from overtone.recipes.qwen3_tts.model.modeling import block_classes, build_on_meta
from overtone.recipes.qwen3_tts.model.sequence_layout import SpeechProcessor, TokenIds, load_tokenizer
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
    """Read an export of Qwen3-TTS voices in either format. Raises `UserError` for a model without trained voices: a voice learns from its
    own speech."""
    config = check_config(base, VOICE_MODEL)
    content = read_voices(base)
    if not content.get("speakers"):
        raise UserError(f"model.source {base}: it has no trained voices ({VOICES}); give the export of a voice_clone run")
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


def require_voices(voices: BaseVoices, found: Collection[str], what: str) -> None:
    """Raises `UserError` for a speaker of the data that the base lacks. `what`: the data, for the message."""
    known = [speaker.name for speaker in voices.speakers]
    if missing := sorted({*found} - {*known}):
        raise UserError(
            f"speaker {missing[0]!r} of the {what} is not one of the base's voices, {', '.join(known)}; give a model that has this voice"
        )


def load_voices(base: Path, voices: BaseVoices, vectors: Tensor, lora: Lora | None, remarks: tuple[str, ...]) -> Loaded[None]:
    """The model of `base` on the meta device with speaker vectors [speakers, H] as a buffer; without processor and state."""
    with limit_construction(base):
        model = build_on_meta(voices.config, vectors, 0.0, 1.0, has_adapter=partial(is_targeted, lora))
    buffers = {"speaker_vectors": vectors}
    return Loaded(model=model, processor=None, blocks=block_classes(), base=base, buffers=buffers, remarks=remarks)


def make_speech_processor(base: Path, voices: BaseVoices) -> SpeechProcessor:
    """The processor that turns rows into samples, with the speakers in the order of their vectors."""
    indices = {speaker.name: index for index, speaker in enumerate(voices.speakers)}
    return SpeechProcessor(load_tokenizer(base), TokenIds.from_config(voices.config), indices)
