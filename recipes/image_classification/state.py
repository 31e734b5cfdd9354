"""State that a run of image_classification stores with each checkpoint: the labels."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from overtone.finetune.recipe import RecipeState


class ClassifierState(RecipeState):
    """The recipe state."""

    labels: Annotated[list[str], Field(min_length=2)]
    """In the order of the model's outputs."""
