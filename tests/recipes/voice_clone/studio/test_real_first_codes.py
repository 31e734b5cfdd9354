"""Speech with given first codes: the model generates the other codes after them, as it does after its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from data_prep.audio_codecs import qwen3_tts_codec
from recipes.speech.decoding.token_sampling import GREEDY
from recipes.voice_clone.inference.talker_decoding import DecodingSession
from recipes.voice_clone.studio.real_first_codes import GivenFirstCodes, TrainedVoice


@pytest.fixture(scope="module")
def voice(two_voices: Any) -> TrainedVoice:
    torch.set_num_threads(1)
    return TrainedVoice(two_voices.custom_voice, "Anna")


def test_a_model_generates_its_own_codes_again_when_its_first_codes_are_given(voice: TrainedVoice, two_voices: Any) -> None:
    """And others when other first codes are given; a batch with a shorter row changes nothing."""
    prompt = voice.embed(two_voices.rows[0]["text"])
    session = DecodingSession(voice.decoder, [prompt], GREEDY, [0], 20)
    for _ in session.frames():
        pass
    own = session.results()[0].codes
    assert own.tolist() == two_voices.rows[0]["audio_codes"] and len(own) > 4, "the voice is Anna's, and she has some frames"
    other = own[:, 0].roll(2)
    again = GivenFirstCodes(voice.decoder, [prompt, prompt, prompt], [own[:, 0], own[:4, 0], other])
    for _ in again.frames():
        pass
    whole, short, changed = (result.codes for result in again.results())
    assert torch.equal(whole, own) and torch.equal(short, own[:4])
    assert torch.equal(changed[:, 0], other) and not torch.equal(changed[:, 1:], own[:, 1:])


def test_speech_has_the_first_codes_and_the_length_of_its_recording(voice: TrainedVoice, monkeypatch: pytest.MonkeyPatch) -> None:
    """More texts than a batch holds, in their order, with recordings of different lengths."""
    random = np.random.default_rng(0)
    waves = [0.1 * random.standard_normal(4_000 + 1_000 * number).astype(np.float32) for number in range(3)]
    given = list[torch.Tensor]()
    start = GivenFirstCodes.__init__
    monkeypatch.setattr(
        GivenFirstCodes, "__init__", lambda self, decoder, prompts, first: given.extend(first) or start(self, decoder, prompts, first)
    )
    monkeypatch.setattr("recipes.voice_clone.studio.real_first_codes.BATCH", 2)
    spoken = voice.generate(["Good day.", "Hello.", "Goodbye."], waves)
    assert [len(wave) for wave in spoken] == [len(wave) for wave in waves]
    for first, wave in zip(given, waves, strict=True):
        (codes,) = qwen3_tts_codec.encode_clips(voice.codec, [wave])
        assert first.tolist() == np.asarray(codes)[:, 0].tolist()
