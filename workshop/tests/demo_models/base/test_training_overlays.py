"""The configs of the base's trainings have valid keys and values."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.config import resolve
from overtone.finetune.recipe import find_recipe, load_options
from workshop.demo_models.base import prepare_base_training

OVERLAYS = sorted(Path(prepare_base_training.__file__).parent.glob("*.yaml"))


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.stem)
def test_an_overlay_fits_the_recipe(overlay: Path) -> None:
    recipe = find_recipe("voice_clone")
    config = resolve("voice_clone", load_options(recipe), [recipe / "config.yaml", overlay], [])
    assert str(config.run.dir).startswith("runs/studio/base/") and config.data.training_files()
    assert len(OVERLAYS) == 4
