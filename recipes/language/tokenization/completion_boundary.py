"""Tokenizes a text with the place of each token, and finds the token at which generation would have begun."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row
from overtone.recipes.language.tokenization.assistant_spans import TurnSpan

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TokenizedText:
    """A whole text and its tokens."""

    text: str
    ids: list[int]
    starts: list[int]
    """First character of each token; ascending."""
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def of(cls, text: str, tokenizer: PreTrainedTokenizerBase) -> TokenizedText:
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return cls(text, encoding["input_ids"], [start for start, _ in encoding["offset_mapping"]], tokenizer)

    def find_tokens(self, turn: TurnSpan) -> range:
        """Return the indices of a turn's tokens. Raises `UserError` if generation would not begin between two of these tokens.

        The text before the turn is tokenized again, from its last added token on. No tokenizer merges across an added token, so the tokens
        before that one stay the same.
        """
        anchor = self._last_added_before(turn.start)
        given = encode_text(self.text[self.starts[anchor] if anchor else 0 : turn.start], self.tokenizer)
        begin = anchor + len(given)
        if self.ids[anchor:begin] != given:
            prompt, answer = self.text[max(0, turn.start - 10) : turn.start], self.text[turn.start :][:10]
            raise UserError(
                f"the tokenizer merges the end of the prompt {prompt!r} with the beginning of the answer {answer!r}, so generation would "
                "never produce that token; remove the white space at the beginning of the assistant's message"
            )
        return range(begin, bisect_left(self.starts, turn.end))

    def _last_added_before(self, character: int) -> int:
        """Index of the last added token before a character; 0 if there is none. Tokenizers split at added tokens before anything else."""
        added = added_token_ids(self.tokenizer)
        return next((number for number in range(bisect_left(self.starts, character) - 1, 0, -1) if self.ids[number] in added), 0)


def encode_text(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a text as it is. A template writes the beginning-of-text token itself, so the tokenizer must not add another."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def tokenize_completion(prompt: str, completion: str, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], int]:
    """Return the ids of a plain text (beginning of text if this tokenizer adds it, prompt, completion, end of text), and the index at which
    the completion starts. Raises `UserError` if the tokenizer has no end of text, or merges the two texts in a way that cannot be undone.

    Generation is given the prompt alone, so the prompt is tokenized alone. If the whole text has other tokens there ("answer: " + "yes",
    where " yes" is one token), the completion is tokenized alone too. Both tokenizations must decode to the same text.
    """
    end = tokenizer.eos_token
    if end is None:
        raise UserError("the tokenizer has no end-of-text token (eos_token), so the model could not learn to stop after a completion")
    following = completion.removesuffix(end) + end
    begin = begin_ids(prompt, tokenizer)
    given, whole = begin + encode_text(prompt, tokenizer), begin + encode_text(prompt + following, tokenizer)
    if whole[: len(given)] == given:
        return whole, len(given)
    separate = given + encode_text(following, tokenizer)
    if tokenizer.decode(separate) != tokenizer.decode(whole):
        raise UserError(
            f"the tokenizer merges the end of the prompt {prompt[-10:]!r} with the beginning of the completion {completion[:10]!r}, and "
            "tokenized separately they decode to another text; move the white space between them to the completion"
        )
    return separate, len(given)


def tokenize_document(row: Row, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of a raw text: beginning of text if this tokenizer adds it, the text, and the end of text unless `ends` is false, as
    for a piece whose document continues in another row. Raises `UserError` for an `ends` of another type, or if the tokenizer has no end of
    text."""
    text, ends = str(row["text"]), row["ends"]
    if not isinstance(ends, bool):
        raise UserError(f"ends must be true or false, found {ends!r:.40}")
    if ends and tokenizer.eos_token is None:
        raise UserError("the tokenizer has no end-of-text token (eos_token), so the model could not learn where a text ends")
    ids = begin_ids(text, tokenizer) + encode_text(text, tokenizer)
    return ids + ([tokenizer.eos_token_id] if ends and ids[-1:] != [tokenizer.eos_token_id] else [])


def begin_ids(prompt: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the beginning-of-text token if the tokenizer adds one and the text does not begin with it; otherwise empty."""
    begin = tokenizer.bos_token_id
    adds_it = begin is not None and tokenizer("")["input_ids"][:1] == [begin]
    return [begin] if adds_it and not prompt.startswith(tokenizer.bos_token) else []


def added_token_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Added tokens: the tokenizer splits a text at these before anything else."""
    return frozenset(tokenizer.get_added_vocab().values())


def find_end_tokens(tokenizer: PreTrainedTokenizerBase) -> frozenset[str]:
    """Return the tokens that can end a turn: the special ones. `</tool_call>` is an added token, too, but the tokenizer treats it as
    text."""
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return frozenset(special | {tokenizer.eos_token} - {None})
