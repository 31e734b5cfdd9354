"""Tests of `overtone.recipes.voice_grpo.speech_registration`."""

from __future__ import annotations

from overtone.finetune.recipe import find_recipe, load_inference
from overtone.recipes.voice_grpo.speech_registration import COMMAND


def test_the_verbs_export_checkpoints_of_this_recipe() -> None:
    speech = load_inference(find_recipe("voice_grpo")).speech
    assert speech is not None and speech().name == COMMAND.speech.name == "voice_grpo"
