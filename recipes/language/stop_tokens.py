"""Which tokens end an answer. A model stops at what it was taught to end its turns with, if whoever runs it knows that token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from finetune.errors import UserError
from recipes.language.chat_labels import tokenise

EXCHANGE = [{"role": "user", "content": "Good day."}, {"role": "assistant", "content": "And to you."}]


def end_of_turn(tokenizer: Any) -> int | None:
    """The token that the chat template closes the assistant's turn with; None without a template, or if that is not certain."""
    try:
        ids, supervised = tokenise({"messages": EXCHANGE}, tokenizer, "assistant")
    except UserError:
        return None
    return max(zip(supervised, range(len(ids)), ids, strict=True))[2]


def stop_ids(tokenizer: Any, configured: int | Iterable[int] | None) -> list[int]:
    """`eos_token_id` of a generation config, with the tokenizer's own end and the end of a turn behind it where they are missing.

    A base model ends texts with one token and a chat template ends turns with another; without that one, answers would run on and on.
    """
    known = [configured] if isinstance(configured, int) else [*(configured or ())]
    found = (*known, tokenizer.eos_token_id, end_of_turn(tokenizer))
    return [*dict.fromkeys(token for token in found if token is not None)]
