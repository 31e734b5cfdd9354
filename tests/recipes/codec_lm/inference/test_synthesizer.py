"""Tests of `overtone.recipes.codec_lm.inference.synthesizer`: the Voice protocol."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.codec_lm.model.sampling_settings import TokenSampling
from overtone.recipes.codec_lm.recipe import RECIPE
from overtone.recipes.codec_lm.speech_registration import SPEECH
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from tests.recipes.codec_lm import tiny_models

ROWS = tiny_models.make_rows()
TEXTS = tiny_models.TEXTS
REQUESTS = [SpeechRequest(row["text"], row["speaker"]) for row in ROWS]


def stream(voice: Any, request: SpeechRequest, sampling: SpeechSampling) -> tuple[list[np.ndarray], Any]:
    chunks, pieces = [], voice.stream(request, sampling)
    while True:
        try:
            chunks.append(next(pieces))
        except StopIteration as end:
            return chunks, end.value


def test_memorized_clips_are_spoken_code_by_code(voice: Any) -> None:
    spoken = voice.speak(REQUESTS, SpeechSampling(greedy=True))
    assert [one.codes.tolist() for one in spoken] == [row["audio_codes"] for row in ROWS]
    for one, row in zip(spoken, ROWS, strict=True):
        assert one.ended and one.rate == 24000 and one.wave.dtype == np.float32
        assert len(one.wave) == 64 * len(row["audio_codes"]) and np.abs(one.wave).max() > 0.01


def test_the_sound_is_that_of_the_codes(voice: Any, full_run: Path) -> None:
    from overtone.data_prep.audio_codecs.selection import open_codec

    (spoken,) = voice.speak(REQUESTS[:1], SpeechSampling(greedy=True))
    codec = open_codec(str(full_run.parent / "codec")).load("cpu")
    np.testing.assert_allclose(spoken.wave, codec.decode(spoken.codes.astype(np.uint16)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("sampling", [SpeechSampling(greedy=True), SpeechSampling(temperature=3.0, seed=5, max_seconds=0.06)])
def test_a_stream_is_the_wave_of_speak(sampling: SpeechSampling, voice: Any) -> None:
    chunks, result = stream(voice, REQUESTS[1], sampling)
    (whole,) = voice.speak(REQUESTS[1:2], sampling)
    assert result.ended == whole.ended
    np.testing.assert_allclose(np.concatenate(chunks), whole.wave, rtol=0, atol=2e-6)
    np.testing.assert_array_equal(np.concatenate(chunks), result.wave)
    assert all(len(chunk) for chunk in chunks)


def test_sound_is_streamed_before_the_last_code(voice: Any) -> None:
    """It takes more frames than the convolutions reach ahead, which are eleven here."""
    tried = (stream(voice, REQUESTS[0], TokenSampling(temperature=60.0, seed=seed, max_seconds=0.07)) for seed in range(50))
    chunks = next(chunks for chunks, result in tried if len(result.wave) > 16 * 64)
    assert len(chunks) > 1


def test_a_seed_gives_the_same_speech_alone_and_in_a_batch(voice: Any) -> None:
    sampling = SpeechSampling(temperature=2.0, seed=3, max_seconds=0.05)
    together = voice.speak(REQUESTS, sampling)
    (alone,) = voice.speak(REQUESTS[2:3], sampling)
    assert alone.codes.tolist() == together[2].codes.tolist()
    np.testing.assert_allclose(alone.wave, together[2].wave, rtol=0, atol=2e-6)


def test_speech_is_cut_off_at_the_time_limit(voice: Any) -> None:
    (spoken,) = voice.speak(REQUESTS[:1], SpeechSampling(greedy=True, max_seconds=2.5 * 64 / 24000))
    assert not spoken.ended and len(spoken.codes) == 3


def test_the_voice_describes_itself(voice: Any, exported: Path) -> None:
    assert (voice.speakers, voice.languages, voice.can_clone, voice.rate) == (("ann", "bob"), (), False, 24000)
    assert (voice.frame_rate, voice.default_temperature, voice.samples_by_default) == (375.0, 0.6, True)
    assert voice.created == int((exported / "config.json").stat().st_mtime)
    voice.check_language("en", "ann")
    with pytest.raises(UserError, match="takes no language"):
        voice.check_language("german", "ann")
    assert voice.speak([], SpeechSampling()) == []


def test_a_folder_is_inspected_without_its_weights(exported: Path) -> None:
    found = SPEECH.inspect(exported)
    assert (found.folder, found.can_clone, found.first_speaker) == (exported, False, "ann")
    found.check(REQUESTS[0])
    completed = found.complete(SpeechRequest("Hi.", "BOB"))
    assert (completed.speaker, completed.language) == ("bob", "english")
    assert SPEECH.trained_speakers({"speakers": [{"name": "ann"}]}) == ["ann"]


def test_prompts_are_spoken_during_training(exported: Path) -> None:
    """The first speaker speaks those that name none; nothing of it is random."""
    pytest.importorskip("snac")
    assert RECIPE.inference.sample is not None
    first, second = (RECIPE.inference.sample(exported, [f"{TEXTS[0]}", f"bob|{TEXTS[1]}"]) for _ in range(2))
    assert [answer.sound for answer in first] == [answer.sound for answer in second]
    assert all(answer.sound.startswith(b"fLaC") and answer.picture for answer in first)
    assert first[0].text.startswith("ann, ") and first[1].text.startswith("bob, ")


def test_tokens_that_are_no_codes_are_an_error(voice: Any) -> None:
    sampling = TokenSampling(temperature=50.0, constrained=False)
    with pytest.raises(UserError, match="--unconstrained: the model produced token"):
        voice.speak(REQUESTS[:1], sampling)
    with pytest.raises(UserError, match="--unconstrained: the model produced token"):
        stream(voice, REQUESTS[0], sampling)


def test_an_unknown_speaker_is_refused_before_anything_is_generated(voice: Any) -> None:
    with pytest.raises(UserError, match="--speaker eve: .* it has ann, bob"):
        voice.speak([*REQUESTS, SpeechRequest("Hi.", "eve")], SpeechSampling())


def test_a_missing_codec_package_is_named_with_the_command(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "snac", None)
    monkeypatch.delitem(sys.modules, "overtone.data_prep.audio_codecs.snac_noise", raising=False)
    with pytest.raises(UserError, match=r"package 'snac' is missing; install the snac extra: pip install 'overtone\[snac\]'"):
        SPEECH.inspect(exported).open()
