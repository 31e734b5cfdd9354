"""The shapes of the released models have the parameters that their files have."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageClassification

from overtone.recipes.image_classification.released_models import RELEASED

PARAMETERS = {
    "google/vit-base-patch16-224-in21k": 85_798_656 + 2 * 769,  # without the pooler, with an output layer for two labels
}


@pytest.mark.parametrize("model", RELEASED, ids=lambda model: model.name)
def test_a_released_model_has_its_published_number_of_parameters(model) -> None:  # type: ignore[no-untyped-def]
    with torch.device("meta"):
        whole = AutoModelForImageClassification.from_config(AutoConfig.for_model(**model.config))
    assert sum(parameter.numel() for parameter in whole.parameters()) == PARAMETERS[model.name]
