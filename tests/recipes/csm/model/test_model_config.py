"""The base's config: the released one, and bases of other families or with parts that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.csm.model.model_config import FRAME_RATE, RELEASED, read_config
from overtone.recipes.csm.model.modeling import build_on_meta


def edit(tiny: Path, folder: Path, **changes: Any) -> Path:
    config = json.loads((tiny / "config.json").read_text())
    for path, value in changes.items():
        *parents, key = path.split("__")
        inner = config
        for parent in parents:
            inner = inner[parent]
        inner[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_released_config_says_what_transformers_has_by_default(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "csm", **RELEASED}))
    config = read_config(tmp_path)
    assert (config.num_codebooks, config.vocab_size, config.hidden_size, config.num_hidden_layers) == (32, 2051, 2048, 16)
    assert (config.audio_token_id, config.audio_eos_token_id, config.codebook_eos_token_id) == (128002, 128003, 0)
    assert (config.codec_config.num_quantizers, config.codec_config.codebook_size) == (32, 2048)
    assert config.codec_config.frame_rate == FRAME_RATE and config.tie_codebooks_embeddings


BAD = {
    "family": ({"model_type": "qwen3"}, "model_type 'qwen3' is not a CSM model of transformers"),
    "depth-codebooks": ({"depth_decoder_config__num_codebooks": 3}, "num_codebooks is 4, and the depth decoder expects 3"),
    "depth-codes": ({"depth_decoder_config__vocab_size": 36}, "vocab_size is 35, and the depth decoder expects 36"),
    "depth-width": ({"depth_decoder_config__backbone_hidden_size": 16}, "hidden_size is 32, and the depth decoder expects 16"),
    "codec-codes": ({"codec_config__codebook_size": 64}, "the codec has 4 codebooks of 64 codes, and the model needs 4 of at most 35"),
    "codec-kind": ({"codec_config__model_type": "encodec"}, "model_type 'encodec', which is not a part of a CSM model"),
    "damaged": ({"depth_decoder_config": [1]}, "config.json cannot be used"),
    "pruned": ({"depth_decoder_config__pruned_heads": {"0": [1]}}, "depth_decoder_config.pruned_heads: .*removed attention heads"),
    "labels": ({"codec_config__num_labels": 10**12}, "codec_config.num_labels: 1000000000000, expected 0 to 100,000"),
    "layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000, expected 0 to 10,000"),
    "negative": ({"hidden_size": -32}, "hidden_size: -32, expected 0 to"),
    "type": ({"torch_dtype": "nonsense"}, "torch_dtype: 'nonsense', expected a floating-point type of torch"),
    "no-heads": ({"num_attention_heads": 0}, "config.json cannot be used"),
    "text-for-a-number": ({"intermediate_size": "many"}, "config.json cannot be used"),
    "fraction": ({"hidden_size": 32.5, "depth_decoder_config__backbone_hidden_size": 32.5}, "config.json cannot be used"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_other_models_are_refused(name: str, tiny: Path, tmp_path: Path) -> None:
    changes, message = BAD[name]
    with pytest.raises(UserError, match=message):
        build_on_meta(read_config(edit(tiny, tmp_path, **changes)), tmp_path)


def test_code_in_a_config_is_not_followed(tiny: Path, tmp_path: Path) -> None:
    config = read_config(edit(tiny, tmp_path, auto_map={"AutoConfig": "evil.Config"}, transformers_weights="other.safetensors"))
    assert not hasattr(config, "auto_map") and getattr(config, "transformers_weights", None) is None
