"""State that a run of a recipe for chats stores with each checkpoint."""

from __future__ import annotations

from overtone.finetune.recipe import RecipeState


class ChatState(RecipeState):
    """Values that an export needs and that must not change within a run. A recipe with more of them declares a subclass."""

    chat_template: str | None
    """Content of `options.chat_template`; None: the base's own."""
