"""The cached layers compute what the stock layers compute; unsupported architectures are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaModel, Qwen3Config, Qwen3Model

from overtone.finetune.errors import UserError
from overtone.recipes.speech.decoding.cached_decoder_layers import (
    AttentionWindow,
    CachedDecoderLayers,
    RMSNorm,
    attend_in_groups,
    check_supported,
)

SIZES = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 64, "num_hidden_layers": 2}
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}


def make_model(family: str) -> Any:
    torch.manual_seed(0)
    shared = SIZES | {"vocab_size": 8}
    if family == "qwen3":
        model: Any = Qwen3Model(Qwen3Config(**shared, head_dim=16))
    else:
        scaling = {"llama": None, "linear": {"rope_type": "linear", "factor": 4.0}, "llama3": LLAMA3}[family]
        model = LlamaModel(LlamaConfig(**shared, rope_scaling=scaling))
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.2)  # a norm of ones would not show that it is left out
    return model.eval()


@pytest.mark.parametrize("family", ["qwen3", "llama", "linear", "llama3"])
def test_the_stack_computes_what_the_stock_model_computes_at_once_and_step_by_step(family: str) -> None:
    """With normalized queries and keys and without, and with scaled rotary positions."""
    model = make_model(family)
    x = torch.randn(2, 9, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(inputs_embeds=x, use_cache=False).last_hidden_state
        stack = CachedDecoderLayers(model, family)
        assert model(inputs_embeds=x, use_cache=False).last_hidden_state.equal(expected), "the stock model still works"
        table = stack.make_rotary_table(9)
        whole = stack(x, stack.make_cache(2, 9), window(table, 0, 9))
        cache = stack.make_cache(2, 12)
        steps = [stack(x[:, a:b], cache, window(table, a, b)) for a, b in ((0, 4), (4, 5), (5, 6), (6, 9))]
    torch.testing.assert_close(whole, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat(steps, 1), expected, atol=1e-5, rtol=1e-5)


def window(table: torch.Tensor, start: int, end: int) -> AttentionWindow:
    slots = torch.arange(start, end)
    cosine, sine = table[start:end].unbind(1)
    return AttentionWindow(slots, end, (torch.arange(end) <= slots[:, None])[None, None], (cosine, sine))


@pytest.mark.parametrize(("steps", "shared"), [(1, True), (1, False), (5, True), (5, False)])
def test_heads_that_share_keys_attend_as_with_a_copy_for_each(steps: int, shared: bool) -> None:
    """Under a mask without torch's own way for shared heads, which on CUDA is slow and takes memory."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 6, steps, 8, generator=generator)
    key, value = (torch.randn(3, 2, 11, 8, generator=generator) for _ in range(2))
    masks = torch.rand(1 if shared else 3, 1, steps, 11, generator=generator) < 0.5
    masks[..., 0] = True
    each = masks.expand(3, 6, steps, 11)
    for mask, scale in ((masks, None), (masks, 0.3), (None, None)):
        scores = query @ key.repeat_interleave(3, 1).mT * (scale or 8**-0.5)
        weights = (scores if mask is None else scores.masked_fill(~each, -torch.inf)).softmax(-1)
        with mock.patch.object(F, "scaled_dot_product_attention", wraps=F.scaled_dot_product_attention) as kernel:
            found = attend_in_groups(query, key, value, mask, scale)
        torch.testing.assert_close(found, weights @ value.repeat_interleave(3, 1))
        assert kernel.call_args.kwargs.get("enable_gqa", False) == (mask is None)


def test_the_norm_for_cpus_equals_rms_norm() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 1, 16, generator=generator)
    for scale in (1e-4, 1.0, 1e4):  # at 1e-4, ε is as large as the values
        x = scale * torch.randn(2, 3, 5, 16, generator=generator)
        torch.testing.assert_close(RMSNorm(weight, 1e-6)(x), F.rms_norm(x, (16,), eps=1e-6) * weight, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sliding_window": 128}, "sliding_window 128"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"mlp_bias": True}, "mlp_bias True"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type yarn"),
    ],
)
def test_an_unsupported_architecture_is_refused(change: dict[str, Any], message: str) -> None:
    released = {"model_type": "m", "sliding_window": None, "attention_bias": False, "hidden_act": "silu", "rope_scaling": None}
    check_supported(SimpleNamespace(**released), "Some-TTS")
    with pytest.raises(UserError, match=f"m with {message} is not supported; use a model with the released Some-TTS architecture"):
        check_supported(SimpleNamespace(**released | change), "Some-TTS")
