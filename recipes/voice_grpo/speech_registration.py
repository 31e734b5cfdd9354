"""The verbs `generate`, `serve`, `eval-voice`, `select` and `pairs` for voices of this recipe."""

from __future__ import annotations

from overtone.recipes.qwen3_tts.generate_command import make_command

COMMAND = make_command("voice_grpo")
