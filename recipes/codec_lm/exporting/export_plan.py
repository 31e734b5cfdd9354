"""The files of an export: a folder that AutoModelForCausalLM loads, with the family and the speakers beside it and the codec inside it.

`voices.json` is all that generation needs to know besides the model; the codec is in `speech_codec/`, as safetensors whatever kind of file
it was read from. So an export speaks without another download, and contains no pickle. It can be trained further.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pydantic import JsonValue
from safetensors.torch import save

from overtone.data_prep.audio_codecs.snac_codec import CODEC_FOLDER, WEIGHTS, read_weights
from overtone.finetune.exporting.model_card_metadata import read_base_metadata
from overtone.finetune.recipe import ExportPlan
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.model_security import CONFIG, cleaned
from overtone.recipes.language.causal_lm_export_files import (
    GENERATION,
    complete_tokenizer,
    config_without_code,
    find_stored_weights,
    list_copied_files,
)
from overtone.recipes.language.tokenization.tokenizer import load_tokenizer
from overtone.recipes.speech.run_codec import CodecRecord, open_recorded_codec
from overtone.recipes.speech.voices_json_schema import VOICES

from ..families import Family
from ..model.dataset_speakers import expect_codec
from ..model.sequence_layout import find_token_ids
from ..state import CodecLmState
from .model_card import write_model_card


def plan_export(base: Path, state: CodecLmState) -> ExportPlan:
    """The plan of the one format. Raises `UserError` if the run's codec is not found, or has changed since the training."""
    family, content = state.family, state.as_json()
    written = complete_tokenizer(
        base,
        {
            CONFIG: input_files.read_bytes(base / CONFIG),
            **config_without_code(base),
            GENERATION: files.json_bytes(make_generation_config(base, family)),
            VOICES: files.json_bytes({name: content[name] for name in ("family", "speakers", "data", "base")}),
            **make_codec_files(base, family, state.codec),
        },
    )
    weights = find_stored_weights(base)
    return ExportPlan(
        layouts=weights.layouts,
        keep=lambda name: name not in weights.dropped,
        files=written,
        copy=tuple(name for name in list_copied_files(base, ("chat_template",)) if name not in written),
        adapter_config={"task_type": "CAUSAL_LM"},
        readme=partial(write_model_card, voices=state, inherited=read_base_metadata(base)),
    )


def make_generation_config(base: Path, family: Family) -> dict[str, JsonValue]:
    """Settings with which transformers' own `generate` stops at the end of speech, and samples as the family's authors do unless the base
    has settings of its own."""
    ids = find_token_ids(load_tokenizer(base, None), family, base)
    own = cleaned(base / GENERATION)[0] if (base / GENERATION).is_file() else {}
    return {"do_sample": True, **family.sampling, **own, "eos_token_id": ids.end_of_speech}


def make_codec_files(base: Path, family: Family, record: CodecRecord) -> dict[str, bytes]:
    """The codec's config and weights, by path in the export. Raises `UserError` if it is not the one that the data was encoded with."""
    codec = open_recorded_codec(record, base, expect_codec(family))
    weights = {name: tensor.contiguous() for name, tensor in read_weights(codec.folder).items()}
    config = files.json_bytes(cleaned(codec.folder / CONFIG)[0])
    return {f"{CODEC_FOLDER}/{CONFIG}": config, f"{CODEC_FOLDER}/{WEIGHTS}": save(weights, {"format": "pt"})}
