"""Tests of `overtone.recipes.codec_lm.released_models`: exact sizes of the released shape, on meta."""

from __future__ import annotations

from pathlib import Path

from overtone.recipes.codec_lm.released_models import RELEASED
from overtone.recipes.language.modeling.causal_model import build_on_meta, find_block_classes
from overtone.recipes.language.modeling.tensor_parallel_plans import PLANS
from tests.recipes.codec_lm import tiny_models


def test_the_released_shape_has_exactly_so_many_parameters(tmp_path: Path) -> None:
    """Llama-3.2-3B-Instruct, from which Orpheus was trained (`pretrain/config.yaml` of canopyai/Orpheus-TTS). Its vocabulary is Llama's,
    128,256, with 28,683 custom tokens (`pretrain/train.py` there) and `<|audio|>`, which the released tokenizer has as well."""
    config = dict(RELEASED[0].config)
    vocabulary = config.pop("vocab_size")
    assert vocabulary == 128_000 + len(tiny_models.RELEASED_SPECIAL) == 128_256 + 28_683 + 1
    tiny_models.write_config(tmp_path, vocabulary, **config)
    model = build_on_meta(tmp_path, "sdpa")
    counted = sum(parameter.numel() for parameter in model.parameters())
    layer = 2 * 3072 * 3072 + 2 * 3072 * 1024 + 3 * 3072 * 8192 + 2 * 3072
    assert counted == 28 * layer + 3072 + 156_940 * 3072 == 3_300_867_072, "the head is tied"
    (block,) = find_block_classes(model)
    assert f"{block.__module__}.{block.__qualname__}" in PLANS


def test_the_models_are_those_of_the_table() -> None:
    assert [model.name for model in RELEASED] == ["canopylabs/orpheus-3b-0.1-pretrained", "canopylabs/orpheus-3b-0.1-ft"]
