"""A request overrides the model's settings, which override the stock defaults."""

from __future__ import annotations

from typing import Any

import pytest

from overtone.recipes.qwen3_tts.model import sampling_settings
from overtone.recipes.qwen3_tts.model.sampling_settings import SCHEME, SamplingSettings
from overtone.recipes.speech.decoding.token_sampling import CodeSampler, FrameSampler, make_frame_sampler

USUAL = FrameSampler(CodeSampler(False, 0.9, 50, 1.0, 1.05), CodeSampler(False, 0.9, 50, 1.0))


@pytest.mark.parametrize(
    ("requested", "own", "expected"),
    [
        (SamplingSettings(), {}, USUAL),
        (
            SamplingSettings(temperature=0.5, top_p=0.8),
            {"temperature": 0.3, "top_k": 7},
            FrameSampler(CodeSampler(False, 0.5, 7, 0.8, 1.05), USUAL.others),
        ),
        (SamplingSettings(subtalker_top_k=1), {"subtalker_temperature": 0.4}, FrameSampler(USUAL.first, CodeSampler(False, 0.4, 1, 1.0))),
        (SamplingSettings(), {"subtalker_dosample": False}, FrameSampler(USUAL.first, CodeSampler(True, 0.9, 50, 1.0))),
        (
            SamplingSettings(),
            {"do_sample": False, "repetition_penalty": 1.2},
            FrameSampler(CodeSampler(True, 0.9, 50, 1.0, 1.2), USUAL.others),
        ),
        (SamplingSettings(temperature=0.7), {"do_sample": False}, FrameSampler(CodeSampler(False, 0.7, 50, 1.0, 1.05), USUAL.others)),
        (SamplingSettings(repetition_penalty=1.0), {"do_sample": False}, FrameSampler(CodeSampler(True, 0.9, 50, 1.0, 1.0), USUAL.others)),
        (SamplingSettings(greedy=True, temperature=0.5), {"repetition_penalty": 1.2}, FrameSampler(CodeSampler(True), CodeSampler(True))),
    ],
)
def test_a_request_overrides_the_model_and_the_model_overrides_the_stock_package(
    requested: SamplingSettings, own: dict[str, Any], expected: FrameSampler
) -> None:
    assert make_frame_sampler(SCHEME, own, requested) == expected


def test_the_stock_defaults_equal_those_of_the_package() -> None:
    from overtone.data_prep.audio_codecs.qwen_tts_import import import_qwen_tts

    tts = import_qwen_tts().Qwen3TTSModel.__new__(import_qwen_tts().Qwen3TTSModel)
    tts.generate_defaults = {}
    assert {name: value for name, value in tts._merge_generate_kwargs().items() if name != "max_new_tokens"} == sampling_settings.STOCK
