"""Tests of `overtone.recipes.codec_lm.model.sampling_settings`."""

from __future__ import annotations

from overtone.recipes.codec_lm.families import ORPHEUS
from overtone.recipes.codec_lm.model.sampling_settings import SCHEME, TokenSampling
from overtone.recipes.speech.decoding.token_sampling import CodeSampler, make_samplers
from overtone.recipes.speech.interface import SpeechSampling
from overtone.recipes.speech.sampling_settings import extend_sampling


def test_settings_are_those_of_the_request_then_of_the_model_then_of_the_authors() -> None:
    assert make_samplers(SCHEME, {}, TokenSampling()) == [CodeSampler(False, 0.6, 0, 0.8, 1.3)]
    assert make_samplers(SCHEME, {"temperature": 0.4, "do_sample": False}, TokenSampling()) == [CodeSampler(True, 0.4, 0, 0.8, 1.3)]
    sampling = TokenSampling(top_k=5, repetition_penalty=1.0)
    assert make_samplers(SCHEME, {"temperature": 0.4, "do_sample": False}, sampling) == [CodeSampler(False, 0.4, 5, 0.8, 1.0)]


def test_another_familys_settings_are_its_own() -> None:
    family = ORPHEUS.model_copy(update={"temperature": 0.9, "repetition_penalty": 1.1})
    assert make_samplers(SCHEME, family.sampling, TokenSampling()) == [CodeSampler(False, 0.9, 0, 0.8, 1.1)]


def test_greedy_has_no_repetition_penalty() -> None:
    assert make_samplers(SCHEME, {}, TokenSampling(greedy=True, temperature=2.0)) == [CodeSampler(greedy=True)]


def test_a_general_request_is_constrained() -> None:
    extended = extend_sampling(SpeechSampling(temperature=0.3, seed=4), TokenSampling)
    assert extended == TokenSampling(temperature=0.3, seed=4, constrained=True)
