"""Window sizes of the CUDA graphs; the graphs themselves need a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recipes.speech.decoding.cuda_graphs import STEP, window_size
from recipes.voice_clone.inference.synthesizer import Request, open_synthesizer
from recipes.voice_clone.model.sampling_settings import SamplingSettings


def test_window_sizes_grow_in_steps_up_to_the_cache_size() -> None:
    assert [window_size(needed, 600) for needed in (1, STEP, STEP + 1, 512, 513, 600)] == [STEP, STEP, 2 * STEP, 512, 600, 600]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures CUDA graphs")
def test_replayed_frames_equal_eager_frames(two_voices: Any) -> None:
    with open_synthesizer(two_voices.custom_voice) as voice:
        spoken = voice.speak([Request(row["text"], row["speaker"]) for row in two_voices.rows], SamplingSettings(greedy=True))
    assert [one.codes.tolist() for one in spoken] == [row["audio_codes"] for row in two_voices.rows]
