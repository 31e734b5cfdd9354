"""The log-probabilities that the stock `qwen_tts` package gives to the codes of a clip while it generates them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList

from overtone.recipes.qwen3_tts.inference import stock_qwen_tts
from tests.recipes.forced_generation import ForcedTokens


@dataclass(frozen=True)
class StockScores:
    """Log-probabilities in nats, among all codes, from the stock package's cached generation, step by step."""

    first: Tensor
    """[T+1], codebook 0 and the end of speech."""
    others: Tensor
    """[T, 15]."""


def force(generate: Callable[..., Any], forced: ForcedTokens) -> Callable[..., Any]:
    """A `generate` with forced tokens and without the stock settings that suppress tokens."""

    def run(**settings: Any) -> Any:
        free = {name: value for name, value in settings.items() if name not in ("suppress_tokens", "min_new_tokens", "repetition_penalty")}
        return generate(**free, logits_processor=LogitsProcessorList([forced]))

    return run


def generate_along(tts: Any, row: dict[str, Any], speaker: str) -> StockScores:
    """Run the stock generation, with its own prompt and its caches, along the codes of a row to the end of speech."""
    codes = row["audio_codes"]
    talker = tts.model.talker
    first = ForcedTokens([*(frame[0] for frame in codes), talker.config.codec_eos_token_id])
    others = ForcedTokens([code for frame in codes for code in frame[1:]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(talker, "generate", force(talker.generate, first))
        patch.setattr(talker.code_predictor, "generate", force(talker.code_predictor.generate, others))
        spoken = stock_qwen_tts.generate_greedy_codes(tts, row["text"], speaker, row["language"], max_frames=len(codes))
    assert spoken.tolist() == codes
    return StockScores(torch.stack(first.noted), torch.stack(others.noted).reshape(len(codes), -1))
