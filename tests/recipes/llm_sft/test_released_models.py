"""The shapes of the released models have the parameters that their model cards state."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from overtone.recipes.llm_sft.released_models import RELEASED

PARAMETERS = {
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
}


@pytest.mark.parametrize("model", RELEASED, ids=lambda model: model.name)
def test_a_released_model_has_its_published_number_of_parameters(model) -> None:  # type: ignore[no-untyped-def]
    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(AutoConfig.for_model(**model.config))
    assert sum(parameter.numel() for parameter in whole.parameters()) == PARAMETERS[model.name]
