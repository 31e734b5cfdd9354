"""Tests of `overtone.recipes.language.model_loading`."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, MixtralConfig

from overtone.finetune.errors import UserError
from overtone.recipes.language.model_loading import balance_experts, load_for_generation
from overtone.recipes.language.modeling.causal_model import CausalModel
from overtone.recipes.language.options import ChatOptions
from overtone.recipes.llm_sft.options import Options
from tests.recipes.llm_sft import tiny_runs


def test_a_folder_is_loaded_in_fp32_with_its_tokenizer(tmp_path: Path) -> None:
    base = tiny_runs.write_base(tmp_path / "base")
    model, tokenizer = load_for_generation(base)
    assert next(model.parameters()).dtype == torch.float32 and not model.training
    assert len(tokenizer) == model.config.vocab_size


def test_what_cannot_be_loaded_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a model .it has no config.json"):
        load_for_generation(tmp_path)
    base = tiny_runs.write_base(tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    save_file({**weights, "model.norm.weight": torch.ones(3)}, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="cannot be loaded"):
        load_for_generation(base)
    (base / "model.safetensors").rename(base / "pytorch_model.bin")
    with pytest.raises(UserError, match="are pickles"):
        load_for_generation(base)


def test_experts_are_balanced_if_the_config_of_the_base_itself_states_the_weight(tmp_path: Path) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    whole = AutoModelForCausalLM.from_config(MixtralConfig(**sizes, num_hidden_layers=2))
    assert whole.config.router_aux_loss_coef > 0, "a default of transformers' class, which is no sign of how a model was trained"
    found: list[tuple[float, str | None]] = []
    for stated in ({}, {"router_aux_loss_coef": 0.02}, {"text_config": {"router_aux_loss_coef": 0.03}}):
        (tmp_path / "config.json").write_text(json.dumps(stated))
        for options in (Options(), Options(router_aux_loss_coef=0.5), ChatOptions()):
            model = CausalModel(copy.deepcopy(whole))
            line = balance_experts(model, options, tmp_path)
            found.append((model.balance_weight, line and line.partition(" of ")[0]))
    wanted = "expert_balance: weight 0.5 (options.router_aux_loss_coef)"
    assert found == [
        *((0.0, None), (0.5, wanted), (0.0, None)),
        *((0.02, "expert_balance: weight 0.02 (router_aux_loss_coef"), (0.5, wanted), (0.0, "router_aux_loss_coef: 0.02")),
        *((0.03, "expert_balance: weight 0.03 (router_aux_loss_coef"), (0.5, wanted), (0.0, "router_aux_loss_coef: 0.03")),
    ]
