"""The text of an answer while its tokens arrive: whole characters, up to the first stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

INCOMPLETE = "\ufffd"
"""Tokenizers decode the first bytes of a character to this."""


class AnswerText:
    """Owns the tokens of one answer. The pieces that `add` and `finish` return, joined, are the tokenizer's text of all tokens, up to the
    first stop string."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str] = ()) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._ids: list[int] = []
        self._begin = self._end = 0
        """The tokens from `_begin` to `_end` are decoded together with the next ones: the first token of a text loses its space in some
        tokenizers."""
        self._held = ""
        """Text that may be the beginning of a stop string."""
        self.stopped = False
        """True if a stop string was found. The text before it is complete."""

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return len(self._ids)

    def add(self, token: int) -> str:
        """Add a token; returns the text that is certain now, which may be empty."""
        self._ids.append(token)
        text = self._decode_new()
        if not text or text.endswith(INCOMPLETE):
            return ""
        self._begin, self._end = self._end, len(self._ids)
        return self._release(text)

    def finish(self) -> str:
        """The rest of the text after the last token."""
        text = self._release(self._decode_new())
        held, self._held = self._held, ""
        return text + held

    def _decode_new(self) -> str:
        """The text of the tokens after `_end`."""
        known = self._decode(self._ids[self._begin : self._end])
        return self._decode(self._ids[self._begin :])[len(known) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _release(self, text: str) -> str:
        """Text up to the first stop string, without an end that may be the beginning of one."""
        if self.stopped:
            return ""
        text = self._held + text
        found = min((place for stop in self._stops if (place := text.find(stop)) >= 0), default=None)
        if found is not None:
            self.stopped, self._held = True, ""
            return text[:found]
        longest = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - longest :]
        return text[: len(text) - longest]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text that is a beginning of the stop string."""
    return next((length for length in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:length])), 0)
