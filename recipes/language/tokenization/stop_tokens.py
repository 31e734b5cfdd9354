"""The tokens that end an answer: generation has to stop at the token with which the model learned to end its turns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import JsonValue

from overtone.finetune.errors import UserError
from overtone.recipes.language.tokenization.sft_tokenization import tokenize_row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EXCHANGE: list[JsonValue] = [{"role": "user", "content": "Good day."}, {"role": "assistant", "content": "And to you."}]


def end_of_turn_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the token with which the chat template ends the assistant's turn; None without a template, or if the token is not certain."""
    try:
        ids, supervised = tokenize_row({"messages": EXCHANGE}, tokenizer, "assistant")
    except UserError:
        return None
    return max(zip(supervised, range(len(ids)), ids, strict=True))[2]


def find_stop_ids(tokenizer: PreTrainedTokenizerBase, configured: int | Iterable[int] | None) -> list[int]:
    """`eos_token_id` of a generation config, followed by the tokenizer's end of text and the end of a turn if these are missing.

    A base model ends texts with one token, and a chat template ends turns with another. Without the second, generation would not stop.
    """
    known = [configured] if isinstance(configured, int) else [*(configured or ())]
    found = (*known, tokenizer.eos_token_id, end_of_turn_id(tokenizer))
    return [*dict.fromkeys(token for token in found if token is not None)]
