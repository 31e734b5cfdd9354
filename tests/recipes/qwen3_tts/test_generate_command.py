"""Tests of `overtone.recipes.qwen3_tts.generate_command`."""

from __future__ import annotations

from overtone.recipes.qwen3_tts.generate_command import make_command
from overtone.recipes.qwen3_tts.inference.synthesizer import Request


def test_each_recipe_has_its_own_name_and_the_options_of_the_model() -> None:
    command = make_command("mine")
    assert command.speech.name == "mine" and command.speech.base_folders == ("speech_tokenizer",)
    parsed = command.parse(["--text", "Hello.", "--out", "a.wav", "--streamed-text"])
    assert parsed.streamed_text and command.Request is Request
