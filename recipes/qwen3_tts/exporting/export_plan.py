"""The files of an export: the trained talker, the speaker vectors as rows of its codec embedding, and the other files of the base.

With `custom_voice`, the stock package speaks by speaker name. `base` keeps the speaker encoder: it can be trained further, and it clones a
voice from a reference clip. Both have the names and vectors of the speakers, so training a `base` export further adds voices.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from overtone.data_prep.audio_codecs import qwen3_tts_speaker_encoder
from overtone.data_prep.audio_codecs.qwen_tts_import import VOICE_MODEL
from overtone.finetune.errors import UserError
from overtone.finetune.exporting.model_card_metadata import read_base_metadata
from overtone.finetune.recipe import ExportPlan
from overtone.finetune.storage import files
from overtone.finetune.storage.model_security import check_config
from overtone.recipes.speech.sampling_settings import CONFIG
from overtone.recipes.speech.voices_json_schema import VOICES

from ..state import VoiceCloneState
from .model_card import write_model_card

if TYPE_CHECKING:
    from torch import Tensor

FORMATS = ("custom_voice", "base")
CODEC_EMBEDDING = "talker.model.codec_embedding.weight"
REQUIRED = (CONFIG, "speech_tokenizer")
COPIED = ("*.json", "*.txt", "*.jinja")
WRITTEN = ("config.json", "model.safetensors.index.json", VOICES, "overtone.json")
"""Files that are not copied from the base: the export writes its own. A base that is itself an export has them too."""


def plan_export(base: Path, state: VoiceCloneState, buffers: dict[str, Tensor], kind: str) -> ExportPlan:
    """The plan for format `custom_voice` or `base`. Raises `UserError` for other formats, for `base` if the base model has no speaker
    encoder, and for a base with missing files."""
    if kind not in FORMATS:
        raise UserError(f"--format {kind}: Qwen3-TTS is exported as {' or '.join(FORMATS)}")
    config = check_config(base, VOICE_MODEL)
    if kind == "base" and config.get("tts_model_type") != "base":
        raise UserError(f"--format base: the base {base} has no speaker encoder; export as custom_voice, or train from a base export")
    rows = [speaker.row for speaker in state.speakers]
    if "speaker_vectors" not in buffers or len(buffers["speaker_vectors"]) != len(rows):
        raise UserError("the checkpoint does not have one vector for each of its speakers; choose another checkpoint")
    return ExportPlan(
        keep=lambda name: kind == "base" or not name.startswith(qwen3_tts_speaker_encoder.PREFIX),
        edit={CODEC_EMBEDDING: lambda table: insert_speaker_rows(table, rows, buffers["speaker_vectors"])},
        files={
            "config.json": files.json_bytes(edit_config(config, state, kind)),
            VOICES: files.json_bytes(state.as_json()),
            "README.md": write_model_card(state, kind, read_base_metadata(base)).encode(),
        },
        copy=list_files_to_copy(base),
    )


def insert_speaker_rows(table: Tensor, rows: list[int], vectors: Tensor) -> Tensor:
    """A copy of the table [vocabulary, H] with `vectors` [speakers, H] in `rows`. Raises `UserError` if they do not fit."""
    if max(rows) >= len(table) or vectors.shape[1:] != table.shape[1:]:
        raise UserError(
            f"speaker vectors of shape {tuple(vectors.shape)} for rows {rows} do not fit {CODEC_EMBEDDING} of shape {tuple(table.shape)}; "
            "choose another checkpoint"
        )
    table = table.clone()
    table[rows] = vectors.to(table)
    return table


def edit_config(config: dict[str, Any], state: VoiceCloneState, kind: str) -> dict[str, Any]:
    """The base's config with the new model type, and the new speakers added to those of the base."""
    talker = config["talker_config"]
    rows = {speaker.name: speaker.row for speaker in state.speakers}
    named = {
        "spk_id": {**(talker.get("spk_id") or {}), **rows},
        "spk_is_dialect": {**(talker.get("spk_is_dialect") or {}), **dict.fromkeys(rows, False)},
    }
    return {**config, "tts_model_type": kind, "talker_config": {**talker, **named}}


def list_files_to_copy(base: Path) -> tuple[str, ...]:
    """Names of the tokenizer files, the generation settings and the speech tokenizer: all that the stock package reads besides weights and
    config."""
    missing = [name for name in REQUIRED if not (base / name).exists()]
    if missing:
        raise UserError(f"the base {base} lacks {', '.join(missing)}, which an export needs in order to speak; download the model again")
    found = {path.name for pattern in COPIED for path in base.glob(pattern)} - set(WRITTEN)
    return (*sorted(found), "speech_tokenizer")
