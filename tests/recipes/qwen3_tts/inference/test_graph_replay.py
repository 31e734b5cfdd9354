"""On a GPU, frames are replayed as CUDA graphs; a CPU computes the same frames one kernel at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from overtone.recipes.qwen3_tts.inference.synthesizer import Request, open_synthesizer
from overtone.recipes.qwen3_tts.model.sampling_settings import SamplingSettings


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures CUDA graphs")
def test_replayed_frames_equal_eager_frames(two_voices: Any) -> None:
    with open_synthesizer(two_voices.custom_voice) as voice:
        spoken = voice.speak([Request(row["text"], row["speaker"]) for row in two_voices.rows], SamplingSettings(greedy=True))
    assert [one.codes.tolist() for one in spoken] == [row["audio_codes"] for row in two_voices.rows]
