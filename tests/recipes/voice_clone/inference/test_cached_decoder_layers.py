"""The cached layers compute what the package's layers compute; unsupported architectures are refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from finetune.errors import UserError
from recipes.voice_clone.inference import reference_package
from recipes.voice_clone.inference.cached_decoder_layers import AttentionWindow, CachedDecoderLayers, RMSNorm, check_supported


@pytest.mark.parametrize("part", ["talker", "predictor"])
def test_the_stack_computes_what_the_package_computes_at_once_and_step_by_step(nano: Path, part: str) -> None:
    talker = reference_package.load(nano).model.talker
    model = talker.model if part == "talker" else talker.code_predictor.model
    x = torch.randn(2, 9, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(inputs_embeds=x, use_cache=False).last_hidden_state
        stack = CachedDecoderLayers(model)
        assert model(inputs_embeds=x, use_cache=False).last_hidden_state.equal(expected), "the package's model still works"
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
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type yarn"),
    ],
)
def test_an_unsupported_architecture_is_refused(change: dict[str, Any], message: str) -> None:
    released = {"model_type": "m", "sliding_window": None, "attention_bias": False, "hidden_act": "silu", "rope_scaling": None}
    check_supported(SimpleNamespace(**released))
    with pytest.raises(UserError, match=message):
        check_supported(SimpleNamespace(**released | change))
