"""A config that describes far more than the weights hold is refused before its tensors are allocated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from overtone.finetune.errors import UserError
from overtone.finetune.storage.construction_limits import EXTRA_BYTES, EXTRA_TENSORS, limit_construction
from overtone.recipes.image_classification import label_prediction
from overtone.recipes.image_classification.recipe import RECIPE
from overtone.recipes.language import answer_generation
from overtone.recipes.language.modeling.causal_model import build_on_meta
from overtone.recipes.llm_sft.model import tiny_checkpoint
from tests.recipes.image_classification import tiny_images

GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 96, "n_head": 4, "n_layer": 2, "vocab_size": 2000}


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint.build(tmp_path_factory.mktemp("chat") / "model")


@pytest.mark.parametrize(
    "config",
    [
        {**GPT2, "n_layer": 10**12},
        {**GPT2, "n_positions": 2**28},  # positions, and with transformers 4 a causal mask in each layer
        {**GPT2, "n_embd": 10**8},
        {"num_hidden_layers": 9_999},
        {"vocab_size": 2**31 - 1},
        {"head_dim": 2**31},
    ],
)
def test_a_config_of_absurd_sizes_is_refused_by_training_and_generation(config: dict[str, Any], chat_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(chat_model, tmp_path / "model")
    own = {} if "n_embd" in config else json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**own, **config}))
    for load in (lambda: build_on_meta(folder, "sdpa"), lambda: answer_generation.load_model(folder)):
        with pytest.raises(UserError, match=rf"{folder}: its config describes a model of .* but its weights have .* bytes; download"):
            load()


def test_an_image_classifier_of_absurd_sizes_is_refused(tmp_path: Path) -> None:
    config = tiny_images.make_config(tmp_path)
    base = tmp_path / "base"
    own = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**own, "hidden_size": 10**9}))
    for load in (lambda: (RECIPE.prepare(config), RECIPE.load(config)), lambda: label_prediction.load_export(base)):
        with pytest.raises(UserError, match=r"its config describes a model of .* but its weights have"):
            load()
    (base / "config.json").write_text(json.dumps({**own, "patch_size": 0}))
    with pytest.raises(UserError, match="cannot be loaded"):  # transformers raises ZeroDivisionError
        label_prediction.load_export(base)


def test_what_the_weights_justify_can_be_created(tmp_path: Path) -> None:
    stored = 10_000
    save_file({f"{number}": torch.zeros(stored // 4) for number in range(4)}, tmp_path / "model.safetensors")
    with limit_construction(tmp_path):
        nn.Linear(100, 100)
        torch.ones(EXTRA_BYTES // 4 + stored, device="meta")
        for _ in range(EXTRA_TENSORS):
            torch.empty(1)
    with limit_construction(tmp_path), pytest.raises(UserError, match="describes a model"):
        torch.zeros(EXTRA_BYTES // 4 + 20 * stored, device="meta")
    torch.zeros(EXTRA_BYTES // 4 + 20 * stored, device="meta")


def test_weights_of_a_part_alone_say_nothing_about_the_model(tmp_path: Path) -> None:
    """As `plan` finds a voice's codec without the voice's weights."""
    (tmp_path / "codec").mkdir()
    save_file({"weight": torch.zeros(4)}, tmp_path / "codec" / "model.safetensors")
    with limit_construction(tmp_path):
        torch.empty(EXTRA_BYTES, device="meta")
    save_file({"weight": torch.zeros(4)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="its weights have"), limit_construction(tmp_path):
        torch.empty(EXTRA_BYTES, device="meta")


def test_a_lying_header_does_not_raise_the_limit(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with limit_construction(tmp_path), pytest.raises(UserError, match="in 3,0.. tensors or more"):
        for _ in range(10 * EXTRA_TENSORS):
            torch.empty(1)
