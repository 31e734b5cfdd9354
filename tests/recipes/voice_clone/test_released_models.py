"""The released models are those of `config_factory`, which has the tests of their shapes."""

from __future__ import annotations

from overtone.recipes.qwen3_tts.model.config_factory import RELEASED as SIZES
from overtone.recipes.voice_clone.released_models import RELEASED


def test_each_released_size_has_its_own_config() -> None:
    assert [model.name for model in RELEASED] == [f"Qwen/Qwen3-TTS-12Hz-{size}-Base" for size in SIZES]
    for model, size in zip(RELEASED, SIZES.values(), strict=True):
        assert model.config["talker_config"]["hidden_size"] == size.talker
        spoken = model.config["talker_config"]["codec_language_id"]
        assert all(language.title() in model.languages for language in spoken) and len(spoken) == 10
