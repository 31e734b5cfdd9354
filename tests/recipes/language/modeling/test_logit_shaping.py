"""Tests of `logit_shaping`: factors and soft caps are measured by whatever name; other changes are refused."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loss_head import Shaping
from overtone.recipes.language.modeling import causal_model
from overtone.recipes.language.modeling.logit_shaping import measure_shaping
from tests.recipes.language.tiny_models import SHAPE

MIXER = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
CASES: dict[str, tuple[str, dict[str, Any], Shaping]] = {
    "nothing": ("llama", {}, Shaping()),
    "a factor": ("cohere", {"logit_scale": 0.3}, Shaping(0.3)),
    "a divisor": ("granite", {"logits_scaling": 8.0}, Shaping(0.125)),
    "a factor that only the decoder knows": ("falcon_h1", {**MIXER, "lm_head_multiplier": 0.25}, Shaping(0.25)),
    "a cap": ("gemma2", {"head_dim": 8, "final_logit_softcapping": 30.0}, Shaping(1.0, 30.0)),
    "a head whose type is read": ("mamba", {"state_size": 4}, Shaping()),
    "a head with a bias": ("phi", {}, Shaping()),
}


def make(kind: str, changes: dict[str, Any]) -> Any:
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SHAPE, "pad_token_id": 0, **changes}))


def measure(whole: Any) -> Shaping:
    paths = (causal_model.find_path(part, whole) for part in (causal_model.find_decoder(whole), whole.get_output_embeddings()))
    return measure_shaping(whole, *paths)


@pytest.mark.parametrize("case", CASES)
def test_what_a_model_does_to_its_logits_is_measured(case: str) -> None:
    kind, changes, expected = CASES[case]
    found = measure(make(kind, changes))
    assert found.scale == pytest.approx(expected.scale, rel=1e-7) and found.cap == expected.cap


@pytest.mark.parametrize("fault", ["states", "an offset", "a cap of another shape", "an error"])
def test_other_changes_are_refused(fault: str) -> None:
    whole = make("llama", {})
    original = type(whole).forward

    class Different(type(whole)):  # type: ignore[misc]
        def forward(self, *given: Any, **named: Any) -> Any:
            if fault == "an error":
                raise KeyError("no such state")
            if fault == "states":
                return original(self, *given, **named, logits_to_keep=1)
            result = original(self, *given, **named)
            result.logits = result.logits + 1.0 if fault == "an offset" else nn.functional.hardtanh(result.logits, -5.0, 5.0)
            return result

    whole.__class__ = Different
    with pytest.raises(UserError, match="Different changes its states or logits in a way that .* does not support.*it cannot be trained"):
        measure(whole)


def test_the_model_is_as_before() -> None:
    whole = make("llama", {})
    parts = list(whole.named_modules())
    measure(whole)
    assert list(whole.named_modules()) == parts
