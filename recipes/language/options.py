"""Options that recipes for causal language models share. Imports no torch, because configs and `--help` need only this module."""

from __future__ import annotations

from typing import Literal

from finetune.config import FilePath, Section


class LanguageOptions(Section):
    """Of every recipe for causal language models."""

    attention: Literal["auto", "varlen", "sdpa", "eager", "flex_attention", "flash_attention_2"] = "auto"
    """`varlen` computes the samples of a packed row separately: with torch's kernel on a GPU in bf16, otherwise in a loop over the samples.
    The others are the implementations of transformers. `auto` uses the first that is possible: varlen with the kernel, flash_attention_2
    if the package is installed, varlen in a loop, sdpa, eager."""
    loss_head: Literal["chunked", "liger"] = "chunked"
    """Implementation of output head and loss: torch operations on chunks of positions, or Liger's fused kernel (needs a GPU and
    overtone[liger])."""


class ChatOptions(LanguageOptions):
    """Of recipes that train on chats."""

    supervise: Literal["assistant", "last", "everything"] = "assistant"
    """Which tokens of a chat are learned: every turn of the assistant, only its last turn, or every token."""
    chat_template: FilePath | None = None
    """Jinja file with a chat template that replaces the tokenizer's own, in training and in the export."""
