"""The byte model with its blocks alone trained, so that a checkpoint of it is small enough to be kept with the tests."""

from __future__ import annotations

from dataclasses import replace

from overtone.finetune.config import Config
from overtone.finetune.recipe import Loaded
from tests.byte_model.recipe import RECIPE as WHOLE


def load(config: Config) -> Loaded:
    return replace(WHOLE.load(config), trainable=lambda name: name.startswith("blocks."))


RECIPE = replace(WHOLE, load=load)
