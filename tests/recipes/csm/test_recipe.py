"""The recipe's interface: light to import, valid config files, LoRA targets, lengths, plan."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from overtone.finetune.config import resolve
from overtone.finetune.errors import UserError
from overtone.finetune.planning.data_preview import preview_data
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.recipe import find_recipe, load_recipe
from overtone.recipes.csm.options import Options
from overtone.recipes.csm.recipe import RECIPE
from tests.recipes.csm.tiny_csm import ReadyCsm, make_config, make_rows, write_rows

FOLDER = Path(__file__).resolve().parents[3] / "recipes" / "csm"


def test_the_recipe_is_found_by_name() -> None:
    assert find_recipe("csm") == FOLDER and load_recipe(FOLDER) is RECIPE


def test_the_config_files_are_valid() -> None:
    real = resolve("csm", Options, [FOLDER / "config.yaml"], [])
    assert (str(real.run.dir), real.model.source) == ("runs/csm", "sesame/csm-1b")
    debug = resolve("csm", Options, [FOLDER / "config.yaml", FOLDER / "debug.yaml"], [])
    assert (debug.model.source, debug.train.precision) == ("runs/tiny/csm", "fp32")


def test_lora_adapts_exactly_the_layers(fresh: ReadyCsm) -> None:
    linear = [name for name, module in fresh.model.named_modules() if isinstance(module, torch.nn.Linear)]
    adapted = [name for name in linear if re.fullmatch(RECIPE.lora_targets, name)]
    assert len(adapted) == 3 * 7 and [name for name in linear if ".layers." in name] == adapted


def test_length_equals_the_width_of_the_padded_batch(fresh: ReadyCsm) -> None:
    assert max(map(RECIPE.length, fresh.samples)) == fresh.batch.tensors["ids"].shape[1]


def test_the_recipe_state_is_json(fresh: ReadyCsm) -> None:
    state = fresh.loaded.state.as_json()
    assert json.loads(json.dumps(state)) == state


def test_a_plan_needs_only_config_and_rows(tiny: Path, tmp_path: Path) -> None:
    config = make_config(tiny, write_rows(tmp_path / "train.jsonl", make_rows(["Ann", "Bob"])), ("train.micro_tokens", "512"))
    foreseen = estimate_run(config, RECIPE)
    assert foreseen.misfits == () and foreseen.work.activations("none", 1).flops > 0
    seen = preview_data(config, RECIPE, foreseen.processor())
    assert seen.rows == 4 and seen.problems == ()


def test_a_plan_reports_a_base_of_another_family(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_tts"}))
    config = make_config(tmp_path, write_rows(tmp_path / "train.jsonl", make_rows(["Ann"])))
    with pytest.raises(UserError, match="model_type 'qwen3_tts' is not a CSM model of transformers"):
        estimate_run(config, RECIPE)
