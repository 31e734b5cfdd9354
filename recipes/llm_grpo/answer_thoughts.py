"""Finds what follows the thoughts of an answer, which is what rewards are given for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OPENING, CLOSING = "<think>", "</think>"


def has_thoughts(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the chat template knows thoughts. Without that the tags are text as any other, such as that of a reward."""
    return CLOSING in str(tokenizer.chat_template)  # several templates are a dict


def leave_out_thoughts(text: str, prompt: str) -> str | None:
    """Return what follows the last thought of an answer; None if its thoughts did not end. `prompt`: as it was rendered, since some
    templates begin the thoughts in it."""
    _, tag, rest = text.rpartition(CLOSING)
    if tag:
        return rest.lstrip()
    begun = prompt.rstrip().endswith(OPENING) or text.lstrip().startswith(OPENING)
    return None if begun else text


def list_hidden_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of the special tokens that are no tags of thoughts: for some tokenizers the tags are special, too."""
    added = tokenizer.added_tokens_decoder.items()
    return frozenset(number for number, token in added if token.special and token.content not in (OPENING, CLOSING))
