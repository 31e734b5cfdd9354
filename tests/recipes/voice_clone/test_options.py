"""The options of voice_clone: documented, checked, and light to import."""

from __future__ import annotations

import pytest

from overtone.finetune.config import resolve
from overtone.finetune.config_key_descriptions import fields
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import find_recipe, load_options
from overtone.recipes.voice_clone.options import Options

OPTIONS = {
    "trainable": "no_text_embedding",
    "sub_weight": "0.5",
    "sub_frames": "0.25",
    "frame_dropout": "0.5",
    "language": "none",
    "speaker": "me",
    "references": "2",
    "vector_steps": "20",
}


def test_the_recipe_uses_these_options() -> None:
    assert load_options(find_recipe("voice_clone")) is Options


def test_every_option_is_documented_and_can_be_set() -> None:
    documented = {key: text for key, _, text in fields(Options)}
    assert set(documented) == set(OPTIONS) and all(documented.values())
    config = resolve("voice_clone", Options, [], [(f"options.{key}", value) for key, value in OPTIONS.items()])
    assert config.options.model_dump(mode="json") == {
        **OPTIONS,
        "sub_weight": 0.5,
        "sub_frames": 0.25,
        "frame_dropout": 0.5,
        "references": 2,
        "vector_steps": 20,
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sub_weight", "-1"),
        ("sub_frames", "0"),
        ("frame_dropout", "1"),
        ("references", "0"),
        ("vector_steps", "-1"),
        ("language", "english"),
        ("weight", "1"),
    ],
)
def test_bad_options_are_refused(key: str, value: str) -> None:
    with pytest.raises(UserError, match=f"options.{key}"):
        resolve("voice_clone", Options, [], [(f"options.{key}", value)])
