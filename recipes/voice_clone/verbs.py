"""The verbs of this recipe, and how its training data is made. Imports no torch: `--help` reads this module."""

from __future__ import annotations

from overtone.recipes.speech.cli.verbs import describe_voice_data, make_inference

INFERENCE = make_inference(__package__, has_pairs=True)
DATA = describe_voice_data(
    "Qwen/Qwen3-TTS-12Hz-0.6B-Base", "\nor see the whole chain on a small example: python -m overtone.recipes.voice_clone.demo"
)
