"""Text as tokens, with the place of each, and where generation would have begun to add some."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from finetune.errors import UserError
from recipes.language.assistant_spans import Turn


@dataclass(frozen=True)
class Cut:
    """A whole text, cut into tokens."""

    text: str
    ids: list[int]
    starts: list[int]
    """Of each token, the first character; ascending."""
    tokenizer: Any

    @classmethod
    def of(cls, text: str, tokenizer: Any) -> Cut:
        cut = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return cls(text, cut["input_ids"], [start for start, _ in cut["offset_mapping"]], tokenizer)

    def tokens_of(self, turn: Turn) -> range:
        """The tokens of a turn. Raises `UserError` if generation would not begin between two of these tokens.

        The text before the turn is cut anew, from its last added token on: no tokenizer joins across one, so all before it stays.
        """
        anchor = self._last_added_before(turn.start)
        given = ids_of(self.text[self.starts[anchor] if anchor else 0 : turn.start], self.tokenizer)
        begin = anchor + len(given)
        if self.ids[anchor:begin] != given:
            prompt, answer = self.text[max(0, turn.start - 10) : turn.start], self.text[turn.start :][:10]
            raise UserError(
                f"the tokenizer joins the end of the prompt {prompt!r} with the beginning of the answer {answer!r}, so generation would "
                "never stand before that token; take the white space off the beginning of the assistant's message"
            )
        return range(begin, bisect_left(self.starts, turn.end))

    def _last_added_before(self, character: int) -> int:
        """Number of the last token before a place that tokenizers cut out of the text before all else; 0 if there is none."""
        added = added_ids(self.tokenizer)
        return next((number for number in range(bisect_left(self.starts, character) - 1, 0, -1) if self.ids[number] in added), 0)


def ids_of(text: str, tokenizer: Any) -> list[int]:
    """Token ids of a text as it stands: a template writes the beginning-of-text token itself, and it must not come twice."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def continued(prompt: str, completion: str, tokenizer: Any) -> tuple[list[int], int]:
    """Plain text: beginning of text (if this tokenizer puts it), prompt, completion, end of text; and where the completion starts.

    Generation is given the prompt alone, so the prompt is cut alone. Where the whole text would be cut otherwise ("answer: " + "yes", if
    " yes" is a token), the completion is cut alone too, and the two must still spell the same.
    """
    end = tokenizer.eos_token
    if end is None:
        raise UserError("the tokenizer has no end-of-text token (eos_token), so the model could not learn to stop after a completion")
    following = completion.removesuffix(end) + end
    begin = beginning(prompt, tokenizer)
    given, whole = begin + ids_of(prompt, tokenizer), begin + ids_of(prompt + following, tokenizer)
    if whole[: len(given)] == given:
        return whole, len(given)
    apart = given + ids_of(following, tokenizer)
    if tokenizer.decode(apart) != tokenizer.decode(whole):
        raise UserError(
            f"the tokenizer joins the end of the prompt {prompt[-10:]!r} with the beginning of the completion {completion[:10]!r}, and cut "
            "apart they spell something else; move the white space between them to the completion"
        )
    return apart, len(given)


def beginning(prompt: str, tokenizer: Any) -> list[int]:
    """The beginning-of-text token, where the tokenizer puts one by itself and the text does not have it already."""
    begin = tokenizer.bos_token_id
    puts_it = begin is not None and tokenizer("")["input_ids"][:1] == [begin]
    return [begin] if puts_it and not prompt.startswith(tokenizer.bos_token) else []


def added_ids(tokenizer: Any) -> frozenset[int]:
    """Tokens that are cut out of the text before all else."""
    return frozenset(tokenizer.get_added_vocab().values())


def turn_ends(tokenizer: Any) -> frozenset[str]:
    """Tokens that can end a turn: those with a meaning beyond their text. `</tool_call>` is added too, but is text to its tokenizer."""
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return frozenset(special | {tokenizer.eos_token} - {None})
