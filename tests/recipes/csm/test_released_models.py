"""The released model has the config whose parameters `test_modeling.py` counts."""

from __future__ import annotations

import json
from pathlib import Path

from overtone.recipes.csm.model.model_config import read_config
from overtone.recipes.csm.released_models import RELEASED


def test_the_released_config_is_that_of_the_recipe(tmp_path: Path) -> None:
    (model,) = RELEASED
    assert model.name == "sesame/csm-1b" and model.licence == "apache-2.0" and model.languages == "English"
    (tmp_path / "config.json").write_text(json.dumps(model.config))
    assert read_config(tmp_path).depth_decoder_config.hidden_size == 1024
