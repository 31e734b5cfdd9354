"""The recipe's part of a checkpoint's state: a model of its keys, which the file must match when it is read."""

from __future__ import annotations

from pathlib import Path

from pydantic import ConfigDict, JsonValue
from typing_extensions import TypeVar

from overtone.finetune.errors import UserError
from overtone.finetune.storage.json_schema import JsonPart, parse_model


class RecipeState(JsonPart):
    """State that a recipe stores with each checkpoint (`recipe_state` in state.json): what its export needs, and what must not change
    within a run.

    A recipe declares its keys in a subclass, `Recipe.State`. This class has none.
    """

    model_config = ConfigDict(frozen=True)

    def as_json(self) -> dict[str, JsonValue]:
        """The content of `recipe_state`."""
        return self.model_dump(mode="json")


StateT = TypeVar("StateT", bound=RecipeState, default=RecipeState)
"""A recipe's `State`. A plain `Recipe` is one with any state."""


def parse_recipe_state(model: type[StateT], content: object, file: Path) -> StateT:
    """The `recipe_state` in the state.json `file`. Raises `UserError` naming the file and the first invalid key."""
    try:
        return parse_model(model, content)
    except ValueError as error:
        raise UserError(f"{file}: recipe_state.{error}; it was not written by this recipe, so choose another checkpoint") from None
