"""Speech from the synthesizer equals that of the stock package, code for code."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from overtone.finetune.errors import UserError
from overtone.recipes.qwen3_tts.inference import stock_qwen_tts
from overtone.recipes.qwen3_tts.inference.synthesizer import Request, Synthesizer, open_synthesizer
from overtone.recipes.qwen3_tts.model.reference_clips import SAMPLE_RATE, read_reference_clip
from overtone.recipes.qwen3_tts.model.sampling_settings import SamplingSettings
from overtone.recipes.speech.sampling_settings import CONFIG

GREEDY = SamplingSettings(greedy=True, max_seconds=1.2)
MOST = {"max_new_tokens": 16}
"""15 frames of 80 ms, and the end of speech."""
TEXTS = ["Please close the window, the rain comes in.", "Hi.", "It is never late!"]


class StockPackage:
    """The stock package, with a record of the codes that it decodes."""

    def __init__(self, folder: Path) -> None:
        self.tts = stock_qwen_tts.load(folder)
        self.codes: list[Any] = []
        codec = self.tts.model.speech_tokenizer
        decode = codec.decode

        def record(encoded: list[dict[str, Any]]) -> Any:
            self.codes = [one["audio_codes"].tolist() for one in encoded]
            return decode(encoded)

        codec.decode = record


@pytest.fixture(scope="module")
def named(two_voices: Any) -> Iterator[tuple[StockPackage, Synthesizer]]:
    with open_synthesizer(two_voices.custom_voice) as voice:
        yield StockPackage(two_voices.custom_voice), voice


@pytest.fixture(scope="module")
def base(two_voices: Any) -> Iterator[tuple[StockPackage, Synthesizer]]:
    with open_synthesizer(two_voices.base) as voice:
        yield StockPackage(two_voices.base), voice


def test_the_synthesizer_disables_cudnn_attention(two_voices: Any) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    open_synthesizer(two_voices.base).close()
    assert not torch.backends.cuda.cudnn_sdp_enabled(), "each batch has new sizes, and cuDNN would plan for each of them"


def speak_codes(voice: Synthesizer, requests: list[Request]) -> list[list[list[int]]]:
    return [one.codes.tolist() for one in voice.speak(requests, GREEDY)]


@pytest.mark.parametrize("streamed", [False, True])
def test_speech_of_named_voices_equals_the_stock_package(two_voices: Any, named: tuple[StockPackage, Synthesizer], streamed: bool) -> None:
    """For memorized clips, which end at different times, and for texts that were not learned."""
    texts = [*(row["text"] for row in two_voices.rows), *TEXTS[:2]]
    speakers = [*(row["speaker"] for row in two_voices.rows), "Bert", "anna"]
    theirs, voice = named
    waves, rate = theirs.tts.generate_custom_voice(
        texts, speakers, "english", non_streaming_mode=not streamed, **stock_qwen_tts.GREEDY, **MOST
    )
    requests = [Request(text, speaker, "english", streamed_text=streamed) for text, speaker in zip(texts, speakers, strict=True)]
    spoken = voice.speak(requests, GREEDY)
    assert [one.codes.tolist() for one in spoken] == theirs.codes
    assert [speak_codes(voice, [request])[0] for request in requests] == theirs.codes, "the same alone as in the batch"
    if not streamed:
        assert theirs.codes[:4] == [row["audio_codes"] for row in two_voices.rows] and all(one.ended for one in spoken[:4])
    for one, wave in zip(spoken, waves, strict=True):
        assert one.rate == rate and one.wave.dtype == np.float32 and one.wave.shape == (len(one.codes) * rate // 12.5,)
        np.testing.assert_allclose(one.wave, wave, atol=1e-4)


def test_sampling_settings_of_the_model_are_used(two_voices: Any, tmp_path: Path) -> None:
    """Without settings in the request, both packages use the folder's generation_config.json."""
    folder = shutil.copytree(two_voices.custom_voice, tmp_path / "export")
    settings = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(settings | {"do_sample": False, "subtalker_dosample": False, "repetition_penalty": 9.0}))
    theirs = StockPackage(folder)
    theirs.tts.generate_custom_voice(TEXTS[:1], ["anna"], "english", non_streaming_mode=True, **MOST)
    with open_synthesizer(folder) as voice:
        (spoken,) = voice.speak([Request(TEXTS[0], "anna", "english")], SamplingSettings(max_seconds=GREEDY.max_seconds))
        (without,) = voice.speak([Request(TEXTS[0], "anna", "english")], GREEDY)
    assert [spoken.codes.tolist()] == theirs.codes
    assert without.codes.tolist() != spoken.codes.tolist(), "the folder sets the penalty; --greedy does not use it"


@pytest.mark.parametrize(
    ("words", "streamed"),
    [(None, False), ("The boats.", False), ("Boats.", True), ("The boats were counted by her, all of them, one by one.", True)],
)
def test_cloned_speech_equals_the_stock_package(
    two_voices: Any, base: tuple[StockPackage, Synthesizer], words: str | None, streamed: bool
) -> None:
    """From the speaker vector alone, and in context, with a reference text longer and shorter than the reference frames."""
    clip = two_voices.ready.config.data.train.parent / "low.flac"
    theirs, voice = base
    waves, _ = theirs.tts.generate_voice_clone(
        TEXTS,
        ["auto", "german", "auto"],
        ref_audio=(read_reference_clip(clip), SAMPLE_RATE),
        ref_text=words,
        x_vector_only_mode=words is None,
        non_streaming_mode=not streamed,
        **stock_qwen_tts.GREEDY,
        **MOST,
    )
    languages = ["auto", "german", None]
    requests = [Request(text, None, language, clip, words, streamed) for text, language in zip(TEXTS, languages, strict=True)]
    spoken = voice.speak(requests, GREEDY)
    chunks = list(voice.stream(requests[0], GREEDY))
    before = 0 if words is None else 13  # `low.flac` lasts one second
    assert [one.codes.tolist() for one in spoken] == [codes[before:] for codes in theirs.codes]
    for one, wave in zip(spoken, waves, strict=True):
        np.testing.assert_allclose(one.wave, wave, atol=1e-4)
    np.testing.assert_allclose(np.concatenate(chunks), spoken[0].wave, atol=1e-4)


def test_a_base_export_reproduces_its_clips_from_a_speaker_vector_but_not_in_context(
    two_voices: Any, base: tuple[StockPackage, Synthesizer]
) -> None:
    """The card shows the first and warns of the second: the layout of in-context cloning was not trained."""
    theirs, _ = base
    clips, came_back = {"Anna": "high.flac", "Bert": "low.flac"}, {True: 0, False: 0}
    for vector_only, row in itertools.product(came_back, two_voices.rows):
        theirs.tts.generate_voice_clone(
            row["text"],
            row["language"],
            ref_audio=str(two_voices.ready.config.data.train.parent / clips[row["speaker"]]),
            ref_text=None if vector_only else "The boats.",
            x_vector_only_mode=vector_only,
            non_streaming_mode=True,
            **stock_qwen_tts.GREEDY,
            **MOST,
        )
        came_back[vector_only] += theirs.codes[0][0 if vector_only else 13 :] == row["audio_codes"]  # 13 frames: one second of reference
    assert came_back == {True: 4, False: 0}


def test_a_changed_reference_clip_is_encoded_again(base: tuple[StockPackage, Synthesizer], tmp_path: Path) -> None:
    clip, spoken = tmp_path / "clip.wav", []
    for seed in (1, 2):
        noise = np.random.default_rng(seed).normal(0, 0.1, SAMPLE_RATE).astype(np.float32)
        soundfile.write(clip, np.cumsum(noise) * 0.02 if seed == 2 else noise, SAMPLE_RATE, subtype="PCM_16")
        os.utime(clip, (1, 1))
        spoken.append(speak_codes(base[1], [Request(TEXTS[0], None, None, clip, "The boats.")]))
    assert spoken[0] != spoken[1], "the same size and time"


def test_a_base_export_speaks_with_its_stored_voices(two_voices: Any, base: tuple[StockPackage, Synthesizer]) -> None:
    requests = [Request(row["text"], row["speaker"]) for row in two_voices.rows]
    assert speak_codes(base[1], requests) == [row["audio_codes"] for row in two_voices.rows]


def test_a_stream_equals_the_speech_generated_at_once(named: tuple[StockPackage, Synthesizer]) -> None:
    request, sampling = Request("Please close the window.", "anna"), SamplingSettings(seed=3, max_seconds=2)
    (whole,) = named[1].speak([request], sampling)
    stream, chunks = named[1].stream(request, sampling), []
    try:
        while True:
            chunks.append(next(stream))
    except StopIteration as end:
        result = end.value
    assert len(chunks) > 1 and len(chunks[0]) == 1920, "the first chunk is one frame"
    np.testing.assert_allclose(np.concatenate(chunks), whole.wave, atol=1e-4)
    assert result.ended == whole.ended and result.wave.shape == whole.wave.shape


def test_a_synthesizer_lists_its_speakers_and_refuses_invalid_requests(base: tuple[StockPackage, Synthesizer]) -> None:
    _, voice = base
    assert voice.can_clone and voice.speakers == ("anna", "bert") and voice.rate == 24000
    assert voice.languages[0] == "auto" and "english" in voice.languages
    assert voice.speak([], GREEDY) == []
    with pytest.raises(UserError, match="it has anna, bert"):
        voice.check(Request("Hi.", "carl"))
    with pytest.raises(UserError, match=r"a text of 4003 tokens is too long for this model, which takes 1024.*'Hello Hello"):
        voice.speak([Request("Hello " * 1000, "anna")], GREEDY)
