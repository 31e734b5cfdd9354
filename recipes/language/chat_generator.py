"""A loaded chat model for programs, which answers as the server does."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from overtone.finetune.errors import UserError
from overtone.recipes.language.answer_generation import load_model, make_chat_row, make_row, tokenize_prompt
from overtone.recipes.language.serving.answer_streaming import AnswerStreamer, make_request
from overtone.recipes.language.text_generator import AnswerSettings
from overtone.recipes.serving.running_batch_interface import STOP

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatGenerator:
    """Implements `TextGenerator`."""

    def __init__(self, folder: Path) -> None:
        """`folder`: an export."""
        self._answers: AnswerStreamer | None = AnswerStreamer(load_model(folder))

    def stream_answer(
        self, prompt: str | Sequence[Mapping[str, object]], system: str | None, settings: AnswerSettings
    ) -> Generator[str, None, bool]:
        """Implements `TextGenerator`. The prompt is checked when the function is called, not with the first piece."""
        if self._answers is None:
            raise UserError("the model is closed; load it again")
        answers = self._answers
        ids = tokenize_prompt(_make_row(prompt, system, settings, answers.loaded.tokenizer), answers.loaded.tokenizer)
        request = make_request(answers.loaded, ids, settings)

        def stream() -> Generator[str, None, bool]:
            pieces = answers.stream(request)
            try:
                while True:
                    yield next(pieces).text
            except StopIteration as end:
                return bool(end.value == STOP)
            finally:
                pieces.close()

        return stream()

    def close(self) -> None:
        """Implements `TextGenerator`."""
        self._answers = None
        torch.cuda.empty_cache()


def _make_row(
    prompt: str | Sequence[Mapping[str, object]], system: str | None, settings: AnswerSettings, tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    """The row of a prompt, as `tokenize_prompt` takes it. Raises `UserError` for a prompt or settings that are not valid."""
    settings.check()
    if not isinstance(prompt, str):
        return make_chat_row({"messages": [dict(message) for message in prompt]}, system)
    if not prompt.strip():
        raise UserError("the prompt is empty; give a text")
    return make_row(prompt, system, tokenizer)
