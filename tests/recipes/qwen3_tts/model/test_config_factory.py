"""The released configs, parameter by parameter, and rules that all configs must follow."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from overtone.recipes.qwen3_tts.model import config_factory, modeling

LAYER = r"(self_attn\.([qkvo]_proj|[qk]_norm)|mlp\.(gate|up|down)_proj|input_layernorm|post_attention_layernorm)\.weight"
RELEASED_KEYS = {
    r"talker\.model\.text_embedding\.weight": 1,
    r"talker\.model\.codec_embedding\.weight": 1,
    rf"talker\.model\.layers\.\d+\.{LAYER}": 28 * 11,
    r"talker\.model\.norm\.weight": 1,
    r"talker\.text_projection\.linear_fc[12]\.(weight|bias)": 4,
    r"talker\.codec_head\.weight": 1,
    r"talker\.code_predictor\.model\.codec_embedding\.\d+\.weight": 15,
    rf"talker\.code_predictor\.model\.layers\.\d+\.{LAYER}": 5 * 11,
    r"talker\.code_predictor\.model\.norm\.weight": 1,
    r"talker\.code_predictor\.lm_head\.\d+\.weight": 15,
}
NARROWER_PREDICTOR = {r"talker\.code_predictor\.small_to_mtp_projection\.(weight|bias)": 2}


def whole_model(shape: dict[str, Any]) -> torch.nn.Module:
    """The package's own model on meta, speaker encoder included."""
    from overtone.data_prep.audio_codecs.qwen_tts_import import import_qwen_tts

    import_qwen_tts()
    from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration

    with torch.device("meta"):
        return Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**shape))


@pytest.mark.parametrize(
    ("size", "whole", "talker", "encoder", "keys"),
    [
        ("0.6B", 914_643_008, 905_788_672, 8_854_336, RELEASED_KEYS),
        ("1.7B", 1_928_677_440, 1_916_676_352, 12_001_088, RELEASED_KEYS | NARROWER_PREDICTOR),
    ],
)
def test_released_configs_have_the_released_parameters(size: str, whole: int, talker: int, encoder: int, keys: dict[str, int]) -> None:
    shape = config_factory.make_released_config(size)
    stock = {name: tuple(parameter.shape) for name, parameter in whole_model(shape).named_parameters()}
    ours = {
        name: tuple(parameter.shape) for name, parameter in modeling.build_on_meta(shape, torch.zeros(1, 8), 0.3, 1.0).named_parameters()
    }
    assert sum(map(math.prod, stock.values())) == whole
    assert sum(map(math.prod, ours.values())) == talker
    assert ours == {name: form for name, form in stock.items() if not name.startswith("speaker_encoder.")}
    assert sum(math.prod(form) for name, form in stock.items() if name.startswith("speaker_encoder.")) == encoder
    counted = {pattern: sum(bool(re.fullmatch(pattern, name)) for name in ours) for pattern in keys}
    assert counted == keys and sum(keys.values()) == len(ours)


def test_released_configs_have_the_released_ids() -> None:
    shape = config_factory.make_released_config("1.7B")
    talker = shape["talker_config"]
    assert talker["vocab_size"] == 3072 and talker["text_vocab_size"] == 151936
    control = {"pad_id": 2148, "bos_id": 2149, "eos_token_id": 2150, "think_id": 2154, "nothink_id": 2155}
    control |= {"think_bos_id": 2156, "think_eos_id": 2157}
    assert {name: talker[f"codec_{name}"] for name in control} == control
    assert talker["rope_scaling"]["mrope_section"] == [24, 20, 20]


@pytest.mark.parametrize("width", [*config_factory.SMALL.values(), *config_factory.RELEASED.values()], ids=lambda width: width.label)
def test_every_config_is_consistent(width: config_factory.ModelSize) -> None:
    shape, codec = config_factory.make_model_config(width, config_factory.RELEASED_TEXT), config_factory.make_codec_config(width.codebook)
    talker, predictor = shape["talker_config"], shape["talker_config"]["code_predictor_config"]
    encoder, decoder = codec["encoder_config"], codec["decoder_config"]
    books = {talker["num_code_groups"], predictor["num_code_groups"], encoder["num_quantizers"], decoder["num_quantizers"]}
    assert books == {16} == {codec["encoder_valid_num_quantizers"]}
    assert predictor["vocab_size"] == encoder["codebook_size"] == decoder["codebook_size"]
    first_control = talker["vocab_size"] - config_factory.SUPPRESSED
    control = [value for name, value in talker.items() if name.startswith("codec_") and name.endswith("_id") and isinstance(value, int)]
    assert len(control) == 7 and all(first_control <= one < talker["vocab_size"] - 72 for one in control)
    assert all(first_control <= one < min(control) for one in talker["codec_language_id"].values())
    assert shape["speaker_encoder_config"]["enc_dim"] == talker["hidden_size"]
    assert sum(talker["rope_scaling"]["mrope_section"]) == talker["head_dim"] // 2
    assert math.prod(encoder["upsampling_ratios"]) * 2 == math.prod(decoder["upsample_rates"] + decoder["upsampling_ratios"]) == 1920
