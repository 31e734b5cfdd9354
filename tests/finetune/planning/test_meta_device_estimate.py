"""The needs of a run are estimated from a config.json alone; without a sketch, from the first rows of the data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.config import Config, resolve
from overtone.finetune.errors import UserError
from overtone.finetune.planning.data_preview import preview_data
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.recipe import Recipe, find_recipe, load_recipe
from overtone.finetune.storage import files
from overtone.recipes.llm_sft.model.tiny_checkpoint import make_config
from overtone.recipes.llm_sft.recipe import RECIPE as LLM
from overtone.recipes.qwen3_tts.model.config_factory import make_released_config
from overtone.recipes.transformers_release import describe_old_release
from overtone.recipes.voice_clone.recipe import RECIPE as VOICE
from tests.finetune import tiny

WORDS = json.loads((Path(__file__).parents[3] / "recipes/llm_sft/tiny_tokenizer/tokenizer.json").read_text(encoding="utf-8"))
LLAMA_70B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip


def run_of(name: str, recipe: Recipe, folder: Path, config: dict[str, Any], *overrides: tuple[str, str]) -> Config:
    files.write_json(folder / "config.json", config)
    own = [("model.source", str(folder)), ("run.dir", str(folder / "run"))]
    return resolve(name, recipe.Options, [find_recipe(name) / "config.yaml"], [*own, *overrides])


def test_a_voice_model_is_estimated_from_its_config_alone(tmp_path: Path) -> None:
    whole = estimate_run(run_of("voice_clone", VOICE, tmp_path, make_released_config("1.7B")), VOICE)
    assert whole.outline.total == whole.outline.trained == 1_916_676_352
    assert whole.outline.blocks == 28 + 5 and whole.remarks == ()
    part = estimate_run(
        run_of("voice_clone", VOICE, tmp_path, make_released_config("1.7B"), ("options.trainable", "no_text_embedding")), VOICE
    )
    assert whole.outline.trained - part.outline.trained == 151936 * 2048
    some = whole.activations(512, "none", 1)
    assert some.positions == 512 and some.blocks > 33 * 512 * 1024 * 20


def test_a_language_model_with_adapters_is_estimated(tmp_path: Path) -> None:
    config = make_config(WORDS)
    full = estimate_run(run_of("llm_sft", LLM, tmp_path, config), LLM)
    lora = estimate_run(run_of("llm_sft", LLM, tmp_path, config, ("model.lora", "{rank: 4}")), LLM)
    assert full.remarks[1:] == describe_old_release() and full.remarks[0].startswith("attention: ")
    assert 0 < lora.outline.trained < full.outline.trained / 10 and lora.outline.total > full.outline.total
    kept, less = (lora.activations(1024, how, 1) for how in ("none", "full"))
    assert less.blocks < kept.blocks / 5 and less.flops > kept.flops


def test_the_plan_is_of_the_config_s_optimizer(tmp_path: Path) -> None:
    config = make_config(WORDS)
    whole, muon = (
        estimate_run(run_of("llm_sft", LLM, tmp_path, config, ("train.optimizer", name)), LLM).outline for name in ("adamw", "muon")
    )
    in_blocks = sum(weight.size for weight in whole.weights if weight.in_block and weight.columns > 1)
    assert whole.state_bytes == 8 * whole.trained and muon.state_bytes == whole.state_bytes - 4 * in_blocks and in_blocks > 0


def test_shared_matrices_are_traced_narrow_and_refused_with_a_reason(tmp_path: Path) -> None:
    found = estimate_run(run_of("llm_sft", LLM, tmp_path, make_config(WORDS)), LLM)
    assert found.work.refuses_tensor(2) is None
    assert "does not divide the model's num_key_value_heads: 2" in (found.work.refuses_tensor(4) or "")
    whole, half = (found.activations(1024, "none", size) for size in (1, 2))
    assert whole.blocks / 2 < half.blocks < whole.blocks and half.flops < whole.flops


def test_a_recipe_without_a_sketch_is_estimated_from_its_rows(tmp_path: Path) -> None:
    found = estimate_run(tiny.config_in(tmp_path), tiny.RECIPE)
    assert found.outline.trained == found.outline.total > 0 and found.activations(64, "none", 1).blocks > 0
    assert not found.misfits


def test_impossible_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        estimate_run(resolve("llm_sft", LLM.Options, [], [("model.source", "./nowhere")]), LLM)
    nothing = ("model.lora", "{targets: nothing_like_it}")
    with pytest.raises(UserError, match="must match linear layers and experts only"):
        estimate_run(run_of("llm_sft", LLM, tmp_path, make_config(WORDS), nothing), LLM)


def test_a_bad_row_is_named_without_a_sketch_too(tmp_path: Path) -> None:
    config = tiny.config_in(tmp_path)
    with pytest.raises(UserError, match=r"train\.jsonl:1: 'no\.png' cannot be read in .*; paths are relative to the file"):
        estimate_run(config, replace(tiny.RECIPE, files=lambda row: ["no.png"]))
    tiny.write_rows(tmp_path / "train.jsonl", ["fine and long", "x"])
    with pytest.raises(UserError, match=r"train\.jsonl:2: text must hold at least three bytes"):
        estimate_run(config, tiny.RECIPE)


def test_rows_that_are_dropped_do_not_count_without_a_sketch(tmp_path: Path) -> None:
    tiny.write_rows(tmp_path / "train.jsonl", ["x" * 90, "y" * 20])
    limits = (("train.micro_tokens", "200"), ("data.sequence_length", "30"))
    kept = estimate_run(tiny.config_in(tmp_path, *limits, ("data.too_long", "drop")), tiny.RECIPE)
    alone = tmp_path / "alone"
    tiny.write_rows(alone / "train.jsonl", ["y" * 20])
    assert kept.activations(30, "none", 1) == estimate_run(tiny.config_in(alone, *limits), tiny.RECIPE).activations(30, "none", 1)
    with pytest.raises(UserError, match=r"train\.jsonl:1: 90 positions do not fit data\.sequence_length: 30"):
        estimate_run(tiny.config_in(tmp_path, *limits), tiny.RECIPE)
    with pytest.raises(UserError, match=r"has no rows that data\.too_long: drop keeps"):
        estimate_run(tiny.config_in(tmp_path, *limits[:1], ("data.sequence_length", "10"), ("data.too_long", "drop")), tiny.RECIPE)


def test_an_exception_of_the_recipe_names_the_row(tmp_path: Path) -> None:
    careless = replace(tiny.RECIPE, files=lambda row: [row["image"]])
    config = tiny.config_in(tmp_path)
    with pytest.raises(UserError, match=r"train\.jsonl:1: the recipe .* cannot read this row \(KeyError: 'image'\)"):
        estimate_run(config, careless)
    found = preview_data(config, careless, None)
    assert len(found.problems) == found.looked_at and "train.jsonl:2: the recipe" in found.problems[1]


@pytest.mark.slow
def test_seventy_billion_parameters_are_estimated_from_the_config_alone(tmp_path: Path) -> None:
    recipe = load_recipe(find_recipe("llm_sft"))
    found = estimate_run(run_of("llm_sft", recipe, tmp_path, LLAMA_70B, ("train.activation_checkpointing", "full")), recipe)
    assert found.outline.trained == 70_553_706_496
    kept = found.work.activations("full", 1)
    assert kept.blocks == pytest.approx(2 * 8192 * 80 * 4096, rel=0.02), "2·s·b·h a layer (Korthikanti et al. 2022)"
