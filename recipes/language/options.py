"""Options that recipes for causal language models share. Imports no torch, because configs and `--help` need only this module."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Field

from overtone.finetune.config import FilePath, Section, list_of_one

Droppable = Literal[
    "system", "user", "assistant", "tool", "name", "tools", "tool_calls", "reasoning_content", "reasoning", "thinking", "thoughts"
]


class LanguageOptions(Section):
    """Options of every recipe for causal language models."""

    attention: Literal["auto", "varlen", "sdpa", "eager", "flex_attention", "flash_attention_2"] = "auto"
    """`varlen` computes the samples of a packed row separately: with torch's kernel on a GPU in bf16, otherwise in a loop over the samples.
    The others are the implementations of transformers. `auto` uses the first that is possible: varlen with the kernel, flash_attention_2
    if the package is installed, varlen in a loop, sdpa, eager."""
    loss_head: Literal["chunked", "liger"] = "chunked"
    """Implementation of output head and loss: torch operations on chunks of positions, or Liger's fused kernel (needs a GPU and
    overtone[liger])."""


LanguageOptionsT = TypeVar("LanguageOptionsT", bound=LanguageOptions)
"""A recipe's options."""


class ChatOptions(LanguageOptions):
    """Options of recipes that train on chats."""

    chat_template: FilePath | None = None
    """Jinja file with a chat template that replaces the tokenizer's own, in training and in the export."""
    allow_dropped: Annotated[
        tuple[Droppable, ...], Field(strict=False), BeforeValidator(list_of_one, json_schema_input_type=Droppable | tuple[Droppable, ...])
    ] = ()
    """Content that the chat template may drop: content by its role (system), fields by their name (tools), `thoughts` in content before
    </think>. A row of which it drops anything else is an error."""


class BalancedExpertOptions(ChatOptions):
    """Options of recipes for chats whose loss can balance the experts of a mixture."""

    router_aux_loss_coef: float | None = Field(default=None, ge=0)
    """Weight of the loss that balances the experts of a mixture (Switch Transformers), computed for each sample; 0 omits it. Default: the
    value of this key in the base's config.json."""


ChatOptionsT = TypeVar("ChatOptionsT", bound=ChatOptions)
"""The options of a recipe that trains on chats."""
