"""Tests of `loss_assumption_checks`: the checks pass for sound models and detect each fault."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    masking_utils,
)

from overtone.finetune.errors import UserError
from overtone.recipes.language.collation import collate
from overtone.recipes.language.modeling import loss_assumption_checks, varlen_attention
from overtone.recipes.language.modeling.causal_model import CausalModel
from tests.recipes.language import tiny_models
from tests.recipes.language.tiny_models import VOCABULARY

SHAPE = {**tiny_models.SHAPE, "pad_token_id": 0}  # some configs have a default beyond a small vocabulary
ISOLATING: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True),
    "mistral, sliding": MistralConfig(**SHAPE, sliding_window=4),
    "gemma2, capped": Gemma2Config(**SHAPE, head_dim=8, final_logit_softcapping=3.0, sliding_window=4),
    "gemma3": Gemma3TextConfig(**SHAPE, head_dim=8),
    "phi3": Phi3Config(**SHAPE),
    "cohere, scaled": CohereConfig(**SHAPE, logit_scale=0.3),
    "granite, scaled": GraniteConfig(**SHAPE, logits_scaling=3.0),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2),
    "qwen3_moe": Qwen3MoeConfig(**SHAPE, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
}

KEEPS_SAMPLES_APART = int(transformers.__version__.partition(".")[0]) >= 5


def whole_model(config: PretrainedConfig, attention: str | None = None) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def settings(packing: bool = True) -> Any:
    train = SimpleNamespace(precision="fp32", micro_tokens=64)
    return SimpleNamespace(data=SimpleNamespace(packing=packing), train=train, options=SimpleNamespace(attention="auto"))


def check(model: Any, packing: bool = True) -> None:
    loss_assumption_checks.check_batching(model, SimpleNamespace(model=model), settings(packing))  # type: ignore[arg-type]


@pytest.mark.parametrize(("fills", "ranks", "refused"), [(False, 2, True), (True, 2, False), (False, 1, False)])
def test_a_loop_of_experts_is_refused_where_ranks_would_mix_their_gradients(
    monkeypatch: pytest.MonkeyPatch, fills: bool, ranks: int, refused: bool
) -> None:
    monkeypatch.setattr(loss_assumption_checks, "FSDPModule", nn.Module)
    monkeypatch.setattr(loss_assumption_checks.sharding, "FILLS_UNUSED", fills)
    monkeypatch.setattr(loss_assumption_checks.dist, "get_world_size", lambda: ranks)
    looped = nn.ModuleDict({"mlp": nn.Module()})
    looped["mlp"].experts = nn.ModuleList([nn.Linear(2, 2)])
    for model, wrong in ((looped, refused), (nn.Linear(2, 2), False)):
        with pytest.raises(UserError, match="computes its experts in a loop") if wrong else contextlib.nullcontext():
            loss_assumption_checks._check_experts(model)


@pytest.mark.parametrize("kind", ISOLATING)
def test_the_loss_equals_the_models_own_and_packing_does_not_change_it(kind: str) -> None:
    whole = whole_model(ISOLATING[kind])
    model = CausalModel(whole).eval()
    check(model)
    sample = loss_assumption_checks._make_sample(11, 3, VOCABULARY)
    batch = collate([sample])
    with torch.no_grad():
        nll, hits = model(batch.tensors)
        logits = whole_model(ISOLATING[kind])(input_ids=batch.tensors["ids"]).logits[0, :-1]
    expected = -logits.log_softmax(-1).gather(1, sample["ids"][1:, None]).sum()
    assert torch.allclose(nll, expected, rtol=1e-5)
    assert hits == (logits.argmax(-1) == sample["ids"][1:]).sum()
    assert batch.targets["nll"] == 10


@pytest.mark.parametrize("attention", ["sdpa", "eager", varlen_attention.LOOP, pytest.param("flex_attention", marks=pytest.mark.slow)])
def test_every_attention_separates_packed_samples(attention: str) -> None:
    varlen_attention.register()
    check(CausalModel(whole_model(ISOLATING["qwen3"], attention)).eval())


def test_varlen_attention_that_differs_from_the_models_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    varlen_attention.register()
    model = CausalModel(whole_model(ISOLATING["mistral, sliding"], varlen_attention.LOOP)).eval()
    check(model, packing=False)
    monkeypatch.setattr(varlen_attention.Spans, "mask", lambda *_: None)
    with pytest.raises(UserError, match=r"by sdpa with a mask and .* by varlen, .*use sdpa or eager"):
        check(model, packing=False)


def test_a_mask_rule_that_differs_only_in_longer_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    varlen_attention.register()
    model = CausalModel(whole_model(MistralConfig(**SHAPE, sliding_window=40), varlen_attention.LOOP)).eval()
    check(model)
    narrower = masking_utils.sliding_window_causal_mask_function
    monkeypatch.setattr(masking_utils, "sliding_window_causal_mask_function", lambda window: narrower(window - 1))
    with pytest.raises(UserError, match="positions attend to others than the earlier ones within a window"):
        check(model)


def test_a_model_whose_attention_ignores_positions_is_refused_only_with_packing() -> None:
    """OPT ignores them up to transformers 4; 5 keeps the samples of a row apart in every model."""
    model = CausalModel(whole_model(OPTConfig(**{**SHAPE, "ffn_dim": 48, "word_embed_proj_dim": 32}))).eval()
    check(model, packing=False)
    with contextlib.nullcontext() if KEEPS_SAMPLES_APART else pytest.raises(UserError, match=r"data\.packing: false"):
        check(model)


@pytest.mark.parametrize("seed", range(8))
def test_experts_are_not_refused_for_rounding(seed: int) -> None:
    """Another sample before this one changes how many positions an expert has, and with it the last bits. The check wanted equal bits."""
    shape = {**SHAPE, "hidden_size": 64, "head_dim": 16, "initializer_range": 0.1}
    config = Qwen3MoeConfig(**shape, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=32)
    torch.manual_seed(seed)
    check(CausalModel(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")).eval())


def test_a_model_that_mixes_neighbouring_positions_is_refused() -> None:
    """A short convolution over positions, as in some hybrid models, leaks two tokens and not a whole sample."""

    class Leaking(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *given: Any, **named: Any) -> Any:
            states = self.inner(*given, **named)
            states.last_hidden_state = states.last_hidden_state + 1e-3 * states.last_hidden_state.roll(1, dims=1)
            return states

    model = CausalModel(whole_model(ISOLATING["llama"])).eval()
    model.set_submodule(model.decoder_path, Leaking(model.get_submodule(model.decoder_path)))
    with pytest.raises(UserError, match="attend to each other"):
        check(model)
