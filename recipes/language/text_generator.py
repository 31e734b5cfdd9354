"""The interface of language models for programs: a conversation in, the answer in pieces out."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from overtone.finetune.errors import UserError

COLDEST = 0.01
"""Lowest temperature above 0: with less, scores would overflow."""


@dataclass(frozen=True)
class AnswerSettings:
    """Settings of an answer."""

    max_new_tokens: int = 512
    temperature: float | None = None
    """None or 0: always take the most likely token."""
    top_p: float | None = None
    """Sample from the smallest set of most likely tokens with this total probability (Holtzman et al. 2019, arXiv:1904.09751)."""
    seed: int = 0

    @property
    def sampling_temperature(self) -> float:
        """The temperature, 1 if there is only `top_p`; 0: greedy."""
        only_top_p = self.temperature is None and self.top_p is not None
        return 1.0 if only_top_p else self.temperature or 0.0

    def check(self) -> None:
        """Raises `UserError` for a number that is out of range."""
        if self.max_new_tokens < 1:
            raise UserError(f"--max-new-tokens {self.max_new_tokens}: must be at least 1")
        if self.temperature is not None and self.temperature < 0:
            raise UserError(
                f"--temperature {self.temperature:g}: must not be negative; 0 is greedy, 1 samples with the model's probabilities"
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"--top-p {self.top_p:g}: must be a probability above 0 and at most 1")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed}: must not be negative")
        if self.temperature == 0 and self.top_p is not None:
            raise UserError("--top-p has no effect with --temperature 0, which always takes the most likely token; remove one of them")


@runtime_checkable
class TextGenerator(Protocol):
    """A loaded language model. For one thread at a time."""

    def stream_answer(
        self, prompt: str | Sequence[Mapping[str, object]], system: str | None, settings: AnswerSettings
    ) -> Generator[str, None, bool]:
        """Pieces of the answer to a text, or to a conversation of messages with `role` and `content`, while it is generated; returns
        whether it has ended by itself. A caller may stop at any piece. A model without a chat template continues a text.

        Raises `UserError` for a prompt that cannot be answered.
        """

    def close(self) -> None:
        """Free the model's memory. It must not be used afterwards."""
