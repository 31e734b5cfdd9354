"""The recipe's interface: light to import, valid config files, LoRA targets, lengths and state."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from overtone.finetune.config import resolve
from overtone.finetune.recipe import find_recipe, load_recipe
from overtone.recipes.voice_clone.options import Options
from overtone.recipes.voice_clone.recipe import RECIPE

FOLDER = Path(__file__).resolve().parents[3] / "recipes" / "voice_clone"


def test_the_recipe_is_found_by_name() -> None:
    assert find_recipe("voice_clone") == FOLDER and load_recipe(FOLDER) is RECIPE


def test_the_config_files_are_valid() -> None:
    real = resolve("voice_clone", Options, [FOLDER / "config.yaml"], [])
    assert (str(real.run.dir), real.model.source) == ("runs/voice_clone", "Qwen/Qwen3-TTS-12Hz-0.6B-Base")
    debug = resolve("voice_clone", Options, [FOLDER / "config.yaml", FOLDER / "debug.yaml"], [])
    assert (debug.model.source, debug.train.precision) == ("runs/tiny/demo", "fp32")


def test_lora_adapts_exactly_the_decoder_layers(fresh: Any) -> None:
    import torch

    linear = [name for name, module in fresh.model.named_modules() if isinstance(module, torch.nn.Linear)]
    adapted = [name for name in linear if re.fullmatch(RECIPE.lora_targets, name)]
    assert len(adapted) == 3 * 7 and all(".layers." in name for name in adapted)
    assert [name for name in linear if ".layers." in name] == adapted


def test_length_equals_the_width_of_the_padded_batch(fresh: Any) -> None:
    assert max(map(RECIPE.length, fresh.samples)) == fresh.batch.tensors["text"].shape[1]


def test_the_recipe_state_is_json(fresh: Any) -> None:
    state = fresh.loaded.state.as_json()
    assert json.loads(json.dumps(state)) == state
    assert [speaker["name"] for speaker in state["speakers"]] == ["anna", "bert"]
