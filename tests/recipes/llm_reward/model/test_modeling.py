"""Values are those of transformers' class for sequence classification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from overtone.finetune.errors import UserError
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.modeling.causal_model import CausalModel
from overtone.recipes.llm_reward.model.modeling import HEAD_STD, ScoreHead, SequenceScorer, build_stock, check_names, init_head
from overtone.recipes.llm_reward.sequence_losses import collate, pack

SMALL = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {**SMALL, "head_dim": 8, "num_key_value_heads": 2},
    "gpt2": {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "llama": {**SMALL, "num_key_value_heads": 2},
    "opt": {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "qwen3": {**SMALL, "num_key_value_heads": 2, "head_dim": 8},
}
PAD = 98


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_values_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    varlen_attention.register()
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **FAMILIES[family], pad_token_id=PAD, num_labels=3)
    stock: Any = AutoModelForSequenceClassification.from_config(config).eval()
    torch.nn.init.normal_(stock.score.weight)
    config.save_pretrained(tmp_path)
    attention = "eager" if family == "gemma2" else varlen_attention.LOOP
    model = SequenceScorer(CausalModel(AutoModelForCausalLM.from_config(config, attn_implementation=attention)), 3).eval()
    check_names(model, build_stock(tmp_path, 3), tmp_path)
    model.load_state_dict({name: value for name, value in stock.state_dict().items() if name in model.state_dict()}, assign=True)
    samples = [{"ids": torch.arange(length) + length, "label": torch.tensor(0), "classes": torch.tensor(3)} for length in (3, 9, 5)]
    expected = torch.cat([stock(input_ids=sample["ids"][None]).logits for sample in samples])
    packed = [] if family in ("gemma2", "opt") else [pack(samples)]  # their packing depends on the version; `load` checks it
    for batch in (collate(samples), *packed):
        torch.testing.assert_close(model(batch.tensors, batch.lengths), expected, rtol=1e-4, atol=1e-5)


def test_the_head_computes_in_fp32() -> None:
    head = ScoreHead(64, 2)
    head.weight = torch.nn.Parameter(torch.randn(2, 64).bfloat16())
    states = torch.randn(5, 64).bfloat16()
    assert torch.equal(head(states), states.float() @ head.weight.float().T) and head(states).dtype == torch.float32


def test_a_new_head_has_small_values() -> None:
    values = init_head(torch.Generator().manual_seed(0), torch.Size((4, 4096)))
    assert values.std() == pytest.approx(HEAD_STD, rel=0.05) and abs(float(values.mean())) < 1e-3


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model_type": "bert"}, "does not read its value at the last token by a linear layer score; give a decoder"),
        ({"model_type": "mamba"}, "is not a causal language model for which transformers .* has a sequence classifier"),
    ],
)
def test_a_base_that_cannot_score_is_refused(config: dict[str, Any], problem: str, tmp_path: Path) -> None:
    AutoConfig.for_model(**config, **({"is_decoder": True} if config["model_type"] == "bert" else {})).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=problem):
        build_stock(tmp_path, 1)


def test_a_class_with_other_parameters_is_refused(tmp_path: Path) -> None:
    AutoConfig.for_model("llama", **FAMILIES["llama"]).save_pretrained(tmp_path)
    other = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **{**FAMILIES["llama"], "num_hidden_layers": 1}))
    with pytest.raises(UserError, match=r"differ in model\.layers\.1\.\S+ \(9 such parameters\)"):
        check_names(SequenceScorer(CausalModel(other), 1), build_stock(tmp_path, 1), tmp_path)
