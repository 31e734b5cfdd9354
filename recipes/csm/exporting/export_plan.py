"""The files of an export: the trained tensors, and of the base its codec, tokenizer, processor and settings. transformers' own class loads
the folder."""

from __future__ import annotations

from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.exporting.model_card_metadata import read_base_metadata
from overtone.finetune.recipe import ExportPlan
from overtone.finetune.storage import files
from overtone.finetune.storage.model_security import CONFIG, cleaned
from overtone.recipes.speech.voices_json_schema import VOICES

from ..model.model_config import read_config
from ..model.modeling import COPY
from ..state import CsmState
from .model_card import write_model_card

REQUIRED = ("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json")
"""Without these, transformers' processor cannot be loaded."""
COPIED = (
    *("tokenizer*.json", "special_tokens_map.json", "chat_template*", "processor_config.json", "preprocessor_config.json"),
    *("generation_config.json", "LICENSE*", "NOTICE*"),
)
PARTS = ("backbone_model.", "depth_decoder.", "lm_head.", "embed_text_tokens.", "codec_model.")
"""Prefixes of the tensors of transformers' class. The released folder also has untrained copies of the weights: a file with the names of
Sesame's own code, and the shared table of codes under a second name (`COPY`)."""


def plan_export(base: Path, state: CsmState) -> ExportPlan:
    """The plan of a folder for `CsmForConditionalGeneration`. Raises `UserError` for a base with missing files."""
    if missing := [name for name in REQUIRED if not (base / name).is_file()]:
        raise UserError(f"the base {base} lacks {', '.join(missing)}, which an export needs in order to speak; download the model again")
    tied = read_config(base).tie_codebooks_embeddings
    return ExportPlan(
        keep=lambda name: name.startswith(PARTS) and not (tied and name == COPY),
        files={
            CONFIG: files.json_bytes(cleaned(base / CONFIG)[0]),
            VOICES: files.json_bytes(state.as_json()),
            "README.md": write_model_card(state, read_base_metadata(base)).encode(),
        },
        copy=tuple(sorted({path.name for pattern in COPIED for path in base.glob(pattern)})),
        adapter_config={
            "auto_mapping": {"base_model_class": "CsmForConditionalGeneration", "parent_library": "transformers.models.csm.modeling_csm"}
        },
    )
