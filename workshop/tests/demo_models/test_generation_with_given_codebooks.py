"""Speech with given codes: the model generates the other codes after them, as it does after its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from overtone.data_prep.audio_codecs import qwen3_tts_codec
from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from overtone.recipes.qwen3_tts.inference.decoding import TalkerBatch
from overtone.recipes.qwen3_tts.inference.exported_folder import ExportedModel
from overtone.recipes.qwen3_tts.inference.prompt_embeddings import PromptEmbeddings
from overtone.recipes.qwen3_tts.inference.synthesizer import Synthesizer
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from workshop.demo_models.generation_with_given_codebooks import GREEDY, GivenCodes, GivenCodesSynthesizer, GivenPrompt

TEXTS = ("Good day.", "Hello.", "Goodbye.")
GIVEN = 3
WAVES = [(0.1 * np.random.default_rng(n).standard_normal(4_000 + 2_000 * n)).astype(np.float32) for n in range(3)]


@pytest.fixture(scope="module")
def voice(two_voices: Any) -> GivenCodesSynthesizer:
    torch.set_num_threads(1)
    return GivenCodesSynthesizer(ExportedModel.inspect(two_voices.custom_voice), dict(zip(TEXTS, WAVES, strict=True)), GIVEN)


def speak(batch: TalkerBatch, prompts: Sequence[PromptEmbeddings]) -> list[torch.Tensor]:
    return [result.codes for result in batch.finish([batch.join(prompt, GREEDY, 0, 20) for prompt in prompts])]


def test_a_model_generates_its_own_codes_again_when_the_first_ones_are_given(voice: GivenCodesSynthesizer, two_voices: Any) -> None:
    """And others when others are given; a batch with a shorter row changes nothing."""
    request = SpeechRequest(two_voices.rows[0]["text"], "Anna")
    prompt = Synthesizer.make_prompt(voice, request)
    own = speak(TalkerBatch(voice._decoder, 1), [prompt])[0]
    assert own.tolist() == two_voices.rows[0]["audio_codes"] and len(own) > 4, "the voice is Anna's, and she has some frames"
    for given in (1, 3, 16):
        other = own.roll(2, dims=0)[:, :given]
        prompts = [GivenPrompt(prompt.before, prompt.beside, codes) for codes in (own[:, :given], own[:4, :given], other)]
        whole, short, changed = speak(GivenCodes(voice._decoder, 3), prompts)
        assert torch.equal(whole, own) and torch.equal(short, own[:4])
        assert torch.equal(changed[:, :given], other) and (given == 16 or not torch.equal(changed[:, given:], own[:, given:]))


def test_each_text_is_spoken_with_the_codes_of_its_recording_in_the_first_codebooks(voice: GivenCodesSynthesizer) -> None:
    """In another order than the recordings', which have different lengths; the other codes are the model's."""
    order = (2, 0, 1)
    spoken = voice.speak([SpeechRequest(TEXTS[at], "Anna") for at in order], SpeechSampling())
    codec = qwen3_tts_codec.load_codec(voice.exported.folder / CODEC_FOLDER, "cpu")
    for at, result in zip(order, spoken, strict=True):
        (codes,) = qwen3_tts_codec.encode_clips(codec, [WAVES[at]])
        assert result.codes[:, :GIVEN].tolist() == np.asarray(codes)[:, :GIVEN].tolist()
        assert not np.array_equal(result.codes[:, GIVEN:], np.asarray(codes)[:, GIVEN:])
        assert 0 <= len(result.wave) - len(WAVES[at]) < qwen3_tts_codec.SAMPLES_PER_FRAME
