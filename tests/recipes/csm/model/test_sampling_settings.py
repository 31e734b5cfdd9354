"""Codes are sampled as the stock class samples them by its generation config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from overtone.recipes.csm.model.sampling_settings import DEFAULTS, SCHEME, CsmSampling
from overtone.recipes.speech.decoding.token_sampling import CodeSampler, FrameSampler, make_frame_sampler
from overtone.recipes.speech.interface import SpeechSampling
from tests.recipes.csm.tiny_csm import load_stock

OWN = {"do_sample": True, "temperature": 0.9, "top_k": 50, "depth_decoder_do_sample": True, "depth_decoder_temperature": 0.8}


@pytest.mark.parametrize(
    ("requested", "own", "expected"),
    [
        (CsmSampling(), {}, FrameSampler(CodeSampler(True, 1.0, 50), CodeSampler(True, 1.0, 50))),
        (CsmSampling(), OWN, FrameSampler(CodeSampler(False, 0.9, 50), CodeSampler(False, 0.8, 50))),
        (SpeechSampling(temperature=0.5), OWN, FrameSampler(CodeSampler(False, 0.5, 50), CodeSampler(False, 0.8, 50))),
        (CsmSampling(depth_decoder_top_k=1), {}, FrameSampler(CodeSampler(True, 1.0, 50), CodeSampler(False, 1.0, 1))),
        (CsmSampling(greedy=True, temperature=0.5), OWN, FrameSampler(CodeSampler(True), CodeSampler(True))),
    ],
)
def test_a_request_overrides_the_model_and_the_model_overrides_transformers(
    requested: SpeechSampling, own: dict[str, Any], expected: FrameSampler
) -> None:
    assert make_frame_sampler(SCHEME, own, requested) == expected


def test_the_defaults_are_those_of_transformers() -> None:
    usual = GenerationConfig()
    for name, value in DEFAULTS.items():
        assert getattr(usual, name) in (value, None), "transformers 5 leaves the defaults to the generation"


def test_the_settings_of_a_model_are_those_that_the_stock_class_reads(tiny: Path) -> None:
    stock, own = load_stock(tiny), SCHEME.resolve(SCHEME.read_model_settings(tiny), SpeechSampling())
    for prefix, config in (("", stock.generation_config), ("depth_decoder_", stock.depth_decoder.generation_config)):
        for name in ("do_sample", "temperature", "top_k"):
            assert own[prefix + name] == getattr(config, name)
    assert own["temperature"] == 0.9 and own["depth_decoder_do_sample"]
