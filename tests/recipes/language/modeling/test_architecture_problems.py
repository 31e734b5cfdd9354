"""Tests of `architecture_problems`: right architectures pass, and what depends on the row is found at its
threshold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from overtone.recipes.language.modeling import architecture_problems, rotary_tables, varlen_attention
from overtone.recipes.language.modeling.architecture_problems import ArchitectureProblems, find_architecture_problems
from overtone.recipes.language.modeling.causal_model import CausalModel
from tests.recipes.language.tiny_models import SHAPE

RIGHT = ArchitectureProblems()
UP_TO_4 = pytest.mark.skipif(
    int(transformers.__version__.partition(".")[0]) >= 5, reason="transformers 5 keeps the samples of a row apart in this model"
)
CHUNKED = {
    "attention_chunk_size": 32,
    "num_local_experts": 2,
    "intermediate_size_mlp": 48,
    "interleave_moe_layer_step": 1,
    "no_rope_layers": [1, 0],
    "head_dim": 8,
}
CONVOLUTION = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture_problems, "_known", {})


def check(kind: str, changes: dict[str, Any], attention: str = varlen_attention.LOOP, packing: bool = True, longest: int = 512) -> Any:
    varlen_attention.register()
    config = AutoConfig.for_model(kind, **{**SHAPE, "pad_token_id": 0, **changes})
    model = CausalModel(AutoModelForCausalLM.from_config(config, attn_implementation=attention))
    return find_architecture_problems(model, attention, packing, longest, longest)


@pytest.mark.parametrize(
    ("kind", "changes", "attention"),
    [
        ("llama", {}, varlen_attention.LOOP),
        ("llama", DYNAMIC, "sdpa"),
        ("llama4_text", CHUNKED, varlen_attention.LOOP),
        ("llama4_text", CHUNKED, "sdpa"),
        ("mistral", {"sliding_window": 32}, "eager"),
        ("gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 2}, varlen_attention.LOOP),
        ("gpt_oss", {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32, "rope_scaling": None}, "eager"),
        ("qwen3_moe", {"head_dim": 8, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}, varlen_attention.LOOP),
    ],
)
def test_a_right_architecture_passes_packed_and_padded(kind: str, changes: dict[str, Any], attention: str) -> None:
    assert check(kind, changes, attention) == RIGHT
    assert check(kind, changes, attention, packing=False) == RIGHT


@pytest.mark.parametrize("kind", ["lfm2", pytest.param("bloom", marks=UP_TO_4)])
def test_an_architecture_that_mixes_samples_is_found_only_with_packing(kind: str) -> None:
    changes = CONVOLUTION if kind == "lfm2" else {"n_head": 4, "n_layer": 2}
    assert check(kind, changes, "eager").together is not None
    assert check(kind, changes, "eager", packing=False) == RIGHT


def test_a_table_that_depends_on_the_row_is_found_if_the_run_reaches_its_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotary_tables, "find_switch", lambda _: None)
    assert check("llama", DYNAMIC, longest=SHAPE["max_position_embeddings"]) == RIGHT
    for packing in (True, False):
        together = check("llama", DYNAMIC, packing=packing).together
        assert together is not None and "differ by" in together


def test_chunks_that_begin_with_the_row_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama 4 as transformers 4 packs it: sdpa's mask has the chunks of the row."""
    begin = varlen_attention.apply_within_samples

    def of_row(rule: Any, bounds: Tensor, length: int) -> Any:
        same = begin(lambda *_: torch.tensor(True), bounds, length)
        return lambda batch, head, position, other: same(batch, head, position, other) & rule(batch, head, position, other)

    monkeypatch.setattr(varlen_attention, "apply_within_samples", of_row)
    assert check("llama4_text", CHUNKED, "sdpa", longest=32) == RIGHT
    assert check("llama4_text", CHUNKED, "sdpa").together is not None


def test_a_loss_that_is_not_the_stock_models_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from overtone.recipes.language.modeling import causal_model, logit_shaping

    monkeypatch.setattr(causal_model, "measure_shaping", lambda *_: logit_shaping.Shaping())
    found = check("granite", {"logits_scaling": 3.0})
    assert found.loss is not None and "instead of" in found.loss


def test_an_attention_that_fails_is_a_reason() -> None:
    found = check("gemma2", {"head_dim": 8})
    assert found.loss is not None and "softcap" in found.loss


def test_what_cannot_be_shrunk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture_problems, "MOST_PARAMETERS", 10)
    found = check("llama", {})
    assert found.unchecked is not None and "parameters are left" in found.unchecked


def test_the_random_state_stays_and_a_process_checks_an_architecture_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_rng_state()
    varlen_attention.register()
    model = CausalModel(AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SHAPE)))
    torch.set_rng_state(before)
    assert find_architecture_problems(model, "sdpa", True, 64, 64) == RIGHT
    assert torch.equal(torch.get_rng_state(), before)
    monkeypatch.setattr(architecture_problems, "_check", lambda *_: pytest.fail("again"))
    assert find_architecture_problems(model, "sdpa", True, 64, 64) == RIGHT
