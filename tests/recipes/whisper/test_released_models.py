"""The shapes of the released models have the parameters that their files have."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, WhisperForConditionalGeneration

from overtone.recipes.whisper.released_models import RELEASED

PARAMETERS = {
    "openai/whisper-tiny.en": 37_760_256,
    "openai/whisper-small": 241_734_912,
    "openai/whisper-medium": 763_857_920,
    "openai/whisper-large-v3": 1_543_490_560,
    "openai/whisper-large-v3-turbo": 808_878_080,
}
"""As transformers counts them, the encoder's fixed positions included."""


@pytest.mark.parametrize("model", RELEASED, ids=lambda model: model.name)
def test_a_released_model_has_its_published_number_of_parameters(model) -> None:  # type: ignore[no-untyped-def]
    with torch.device("meta"):
        whole = WhisperForConditionalGeneration(AutoConfig.for_model(**model.config))
    assert sum(parameter.numel() for parameter in whole.parameters()) == PARAMETERS[model.name]
