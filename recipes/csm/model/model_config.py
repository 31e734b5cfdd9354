"""The config of a CSM model, read and checked without running anything that comes with the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_classes import COMMON_TOKENIZERS
from overtone.finetune.storage.model_security import CONFIG, Kind, admit
from overtone.finetune.storage.strict_json import one_line

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CODEC_TYPE, DEPTH_TYPE = "mimi", "csm_depth_decoder_model"


def _is_part(_: str, inner: str) -> bool:
    return inner in (CODEC_TYPE, DEPTH_TYPE)


CLASSES = {"tokenizer_class": COMMON_TOKENIZERS | {"LlamaTokenizer", "LlamaTokenizerFast"}}
CSM = Kind("a CSM model of transformers", {"csm"}, _is_part, CLASSES)
"""The folders that are accepted as models of this recipe."""
FRAME_RATE = 12.5
"""Frames of codes per second of speech."""

ROPE: dict[str, Any] = {"rope_type": "llama3", "factor": 32.0}
RELEASED: dict[str, Any] = {
    "rope_scaling": {**ROPE, "high_freq_factor": 0.5, "low_freq_factor": 0.125, "original_max_position_embeddings": 1024},
    "depth_decoder_config": {
        "rope_scaling": {**ROPE, "high_freq_factor": 0.0078125, "low_freq_factor": 0.001953125, "original_max_position_embeddings": 16},
    },
    "codec_config": {"model_type": CODEC_TYPE},
}
"""Settings in the config of sesame/csm-1b; all else has the defaults of transformers' config classes.

Source: `src/transformers/models/csm/convert_csm.py` in transformers' repository, which made the released folder and says there why these
numbers equal those of `models.py` in SesameAILabs/csm.
"""


def read_config(base: Path) -> PretrainedConfig:
    """The base's `CsmConfig`. Raises `UserError` for a model of another family, and for one whose parts do not fit together."""
    from transformers import AutoConfig

    with admit(base, CSM) as clean:
        try:
            config = AutoConfig.from_pretrained(clean, trust_remote_code=False)
            check_parts(config, base)
        except UserError:
            raise
        except Exception as error:  # the versions of transformers check different things and raise different types
            raise explain_failure(base, error) from error
    return config


def explain_failure(base: Path, error: Exception) -> UserError:
    """The error for a config that transformers cannot read, or cannot build a model from."""
    return UserError(
        f"{base}: config.json cannot be used ({type(error).__name__}: {one_line(error)}); download the model again, or, if the folder was "
        "written by another version of transformers, use that one"
    )


def check_parts(config: PretrainedConfig, base: Path) -> None:
    """Raises `UserError` if backbone, depth decoder and codec disagree about the codes."""
    depth, codec, place = config.depth_decoder_config, config.codec_config, base / CONFIG
    if (found := getattr(codec, "model_type", None)) != CODEC_TYPE:
        raise UserError(f"{place}: codec_config.model_type is {found!r}, expected {CODEC_TYPE!r}; give another model")
    pairs = {
        "num_codebooks": (config.num_codebooks, depth.num_codebooks),
        "vocab_size": (config.vocab_size, depth.vocab_size),
        "hidden_size": (config.hidden_size, depth.backbone_hidden_size),
    }
    for key, (backbone, of_depth) in pairs.items():
        if backbone != of_depth:
            raise UserError(f"{place}: {key} is {backbone}, and the depth decoder expects {of_depth}; download the model again")
    if codec.num_quantizers < config.num_codebooks or codec.codebook_size > config.vocab_size:
        raise UserError(
            f"{place}: the codec has {codec.num_quantizers} codebooks of {codec.codebook_size} codes, and the model needs "
            f"{config.num_codebooks} of at most {config.vocab_size}; download the model again"
        )
