"""A loaded chat model for programs, which answers as the server does."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import torch

from overtone.finetune.errors import UserError
from overtone.recipes.language.answer_generation import LoadedModel, check_length, load_model, make_chat_row, make_row, tokenize_prompt
from overtone.recipes.language.serving.chat_batch import AnswerRequest
from overtone.recipes.language.serving.single_answer_generation import stream_answer
from overtone.recipes.language.text_generator import COLDEST, AnswerSettings
from overtone.recipes.serving.running_batch_interface import STOP
from overtone.recipes.speech.decoding.token_sampling import CodeSampler


class ChatGenerator:
    """Implements `TextGenerator`."""

    def __init__(self, folder: Path) -> None:
        """`folder`: an export."""
        self._loaded: LoadedModel | None = load_model(folder)

    def stream_answer(
        self, prompt: str | Sequence[Mapping[str, object]], system: str | None, settings: AnswerSettings
    ) -> Generator[str, None, bool]:
        """Implements `TextGenerator`. The prompt is checked when the function is called, not with the first piece."""
        if self._loaded is None:
            raise UserError("the model is closed; load it again")
        loaded, request = self._loaded, self._make_request(self._loaded, prompt, system, settings)

        def stream() -> Generator[str, None, bool]:
            pieces = stream_answer(loaded, request)
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
        self._loaded = None
        torch.cuda.empty_cache()

    def _make_request(
        self, loaded: LoadedModel, prompt: str | Sequence[Mapping[str, object]], system: str | None, settings: AnswerSettings
    ) -> AnswerRequest:
        settings.check()
        temperature, tokenizer = settings.sampling_temperature, loaded.tokenizer
        if 0 < temperature < COLDEST:
            raise UserError(f"--temperature {temperature:g} is above 0 and below {COLDEST:g}; use 0, which takes the most likely token")
        if isinstance(prompt, str):
            if not prompt.strip():
                raise UserError("the prompt is empty; give a text")
            row = make_row(prompt, system, tokenizer)
        else:
            row = make_chat_row({"messages": [dict(message) for message in prompt]}, system)
        ids = tokenize_prompt(row, tokenizer)
        check_length(ids, loaded)
        limit = settings.max_new_tokens if loaded.positions is None else min(settings.max_new_tokens, loaded.positions - len(ids))
        sampler = CodeSampler(greedy=True) if temperature == 0 else CodeSampler(False, temperature, top_p=settings.top_p or 1.0)
        return AnswerRequest(ids, sampler, settings.seed, limit)
