"""Options that recipes for causal language models share. Imports no torch: configs and `--help` are read from here."""

from __future__ import annotations

from typing import Literal

from finetune.config import FilePath, Section


class LanguageOptions(Section):
    supervise: Literal["assistant", "last", "everything"] = "assistant"
    """What is learned of a chat: every turn of the assistant, only the last one, or every token."""
    chat_template: FilePath | None = None
    """Jinja file to use, and to export, instead of the tokenizer's own chat template."""
    attention: Literal["auto", "varlen", "sdpa", "eager", "flex_attention", "flash_attention_2"] = "auto"
    """`varlen` computes the samples of a packed row apart, by torch's kernel on a GPU in bf16 and otherwise one by one; the others are
    transformers'. `auto`: varlen by the kernel, else flash_attention_2 where the package is, else varlen one by one, else sdpa or eager."""
    loss_head: Literal["chunked", "liger"] = "chunked"
    """What computes the loss from the last states: plain torch operations, or Liger's fused kernel (a GPU and overtone[liger])."""
