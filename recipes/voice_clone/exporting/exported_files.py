"""What an export holds: the trained talker, the speakers as rows of its codec embedding, and the base's other files.

`custom_voice` is what the stock package speaks from by name. `base` keeps the speaker encoder: it can be trained again, and it clones a
voice from a reference clip. Both hold the speakers' rows and names, so that voices add up when a `base` export is trained further.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from data_prep.audio_codecs import qwen3_tts_speaker_encoder
from finetune.checkpointing.checkpoint_metadata import JsonPart, check_recipe_state
from finetune.errors import UserError
from finetune.recipe import ExportPlan
from finetune.storage import files

from ..model import sampling_settings
from .model_card import model_card

if TYPE_CHECKING:
    from torch import Tensor

FORMATS = ("custom_voice", "base")
CODEC_EMBEDDING = "talker.model.codec_embedding.weight"
VOICES = "voices.json"
"""Who was trained, on what: what README.md tells people, for `generate` and other programs."""
REQUIRED = (sampling_settings.CONFIG, "speech_tokenizer")
COPIED = ("*.json", "*.txt", "*.jinja")
WRITTEN = ("config.json", "model.safetensors.index.json", VOICES, "overtone.json")
"""Not copied from the base: written here or by the export, and an older export as a base has its own."""


class Speaker(JsonPart):
    name: str
    row: Annotated[int, Field(ge=0)]
    language: str | None
    clips: Annotated[int, Field(ge=0)]
    seconds: Annotated[float, Field(ge=0)]


class Data(JsonPart):
    name: str
    sha256: str
    clips: Annotated[int, Field(ge=0)]


class Base(JsonPart):
    name: str
    revision: str | None


class Trained(JsonPart):
    """What `speaker_statistics.describe` writes, as far as an export reads it."""

    speakers: Annotated[list[Speaker], Field(min_length=1)]
    data: Data
    base: Base


def plan(base: Path, state: dict[str, Any], buffers: dict[str, Tensor], kind: str) -> ExportPlan:
    """The plan for `custom_voice` or `base`. Raises `UserError` for another format and for a base that lacks files."""
    if kind not in FORMATS:
        raise UserError(f"--format {kind}: voice_clone exports {' or '.join(FORMATS)}")
    check_recipe_state(Trained, state)
    rows = [speaker["row"] for speaker in state["speakers"]]
    if "speaker_vectors" not in buffers or len(buffers["speaker_vectors"]) != len(rows):
        raise UserError("the checkpoint does not hold one vector for each of its speakers; choose another checkpoint")
    return ExportPlan(
        keep=lambda name: kind == "base" or not name.startswith(qwen3_tts_speaker_encoder.PREFIX),
        edit={CODEC_EMBEDDING: lambda table: with_rows(table, rows, buffers["speaker_vectors"])},
        files={
            "config.json": files.json_bytes(edited_config(qwen3_tts_speaker_encoder.read_base_config(base), state, kind)),
            VOICES: files.json_bytes(state),
            "README.md": model_card(state, kind).encode(),
        },
        copy=files_to_copy(base),
    )


def with_rows(table: Tensor, rows: list[int], vectors: Tensor) -> Tensor:
    """A copy of the [vocabulary, H] table with the speakers' vectors in their rows. Raises `UserError` for what does not fit into it."""
    if max(rows) >= len(table) or vectors.shape[1:] != table.shape[1:]:
        raise UserError(
            f"speaker vectors of shape {tuple(vectors.shape)} for rows {rows} do not fit {CODEC_EMBEDDING} of shape {tuple(table.shape)}; "
            "choose another checkpoint"
        )
    table = table.clone()
    table[rows] = vectors.to(table)
    return table


def edited_config(config: dict[str, Any], state: dict[str, Any], kind: str) -> dict[str, Any]:
    """The base's config with the new kind and the new speakers beside the old ones."""
    talker = config["talker_config"]
    rows = {speaker["name"]: speaker["row"] for speaker in state["speakers"]}
    named = {
        "spk_id": {**(talker.get("spk_id") or {}), **rows},
        "spk_is_dialect": {**(talker.get("spk_is_dialect") or {}), **dict.fromkeys(rows, False)},
    }
    return {**config, "tts_model_type": kind, "talker_config": {**talker, **named}}


def files_to_copy(base: Path) -> tuple[str, ...]:
    """Tokenizer, generation settings and speech tokenizer: all that the stock package reads besides weights and config."""
    missing = [name for name in REQUIRED if not (base / name).exists()]
    if missing:
        raise UserError(f"the base {base} lacks {', '.join(missing)}, without which no export can speak; fetch the model again")
    found = {path.name for pattern in COPIED for path in base.glob(pattern)} - set(WRITTEN)
    return (*sorted(found), "speech_tokenizer")
