"""The released models that voice_clone trains, for docs/models.md."""

from __future__ import annotations

from overtone.finetune.recipe import ReleasedModel
from overtone.recipes.qwen3_tts.model.config_factory import make_released_config

LANGUAGES = "10: Chinese, English, French, German, Italian, Japanese, Korean, Portuguese, Russian, Spanish"

RELEASED = tuple(
    ReleasedModel(f"Qwen/Qwen3-TTS-12Hz-{size}-Base", "apache-2.0", LANGUAGES, make_released_config(size), streaming=True)
    for size in ("0.6B", "1.7B")
)
