"""Windows of speech: the same for the same seed and number, and tokens that say what is in the sound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from whisper.audio import log_mel_spectrogram
from whisper.tokenizer import get_tokenizer

from recipes.voice_clone.studio.corpus.voices import VOICES
from recipes.voice_clone.studio.whisper import training_windows
from recipes.voice_clone.studio.whisper.training_windows import IGNORED, RATE, TICK, TICK_S, Speech, log_mels

TOKENIZER = get_tokenizer(multilingual=False)
NOWHERE = [TOKENIZER.no_timestamps, TOKENIZER.no_speech, TOKENIZER.eot]


@pytest.fixture(scope="module")
def speech(noise_corpus: Path) -> Speech:
    return Speech(noise_corpus, TOKENIZER)


def test_training_sentences_of_all_voices_are_heard(speech: Speech) -> None:
    assert len(speech.utterances) == 3 * len(VOICES), "two of each, and what the codec makes of one"
    again = speech.utterances[2 * len(VOICES) :]
    assert [one.tokens for one in again] == [one.tokens for one in speech.utterances[: 2 * len(VOICES) : 2]]


def test_a_batch_follows_from_its_number(speech: Speech) -> None:
    one, same, other = speech.batch(0, 3, 4.0, 3), speech.batch(0, 3, 4.0, 3), speech.batch(0, 4, 4.0, 3)
    torch.testing.assert_close(one.mels, same.mels, rtol=0, atol=0)
    assert torch.equal(one.targets, same.targets) and one.phones == same.phones
    assert one.mels.shape == other.mels.shape == (3, 80, 400)
    assert not torch.equal(one.mels, other.mels)


def test_inputs_are_the_targets_one_later(speech: Speech) -> None:
    batch = speech.batch(1, 0, 6.0, 8)
    assert set(batch.inputs[:, 0].tolist()) == {TOKENIZER.sot}
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        told = [token for token in targets if token != IGNORED]
        assert inputs[1 : len(told)] == told[:-1] and told[-1] == TOKENIZER.eot


def test_tokens_say_what_is_in_the_window(speech: Speech) -> None:
    """A row of windows: times grow, the text is of the grammar, one that is cut off has a start and no end, noise has no words."""
    random = np.random.default_rng(0)
    windows = [speech.window(8.0, random) for _ in range(150)]
    zero, text = TOKENIZER.timestamp_begin, set(speech.text_tokens)
    timed = [window for window in windows if window.tokens[0] >= zero]
    plain = [window for window in windows if window.tokens[0] == TOKENIZER.no_timestamps]
    noise = [window for window in windows if window.tokens == [TOKENIZER.no_speech]]
    assert len(timed) + len(plain) + len(noise) == 150 and len(timed) > 50 and len(plain) > 40 and len(noise) > 1
    for window in timed:
        times = [token - zero for token in window.tokens if token >= zero]
        assert times == sorted(times) and times[-1] * TICK <= len(window.sound) <= 8.0 * RATE
        assert len(times) % 2 == (0 if window.phones else 1), "cut off: its start only, and no phones"
    assert {len([token for token in window.tokens if token >= zero]) % 2 for window in timed} == {0, 1}
    assert all(set(window.tokens[1:]) <= text and window.phones for window in plain)
    assert all(not window.phones for window in noise)
    assert all(len(window.tokens) < 448 for window in windows)


def test_every_token_has_its_place_in_the_sound(speech: Speech) -> None:
    """Times are where they say, words in order between those of their sentence; what is nowhere has none."""
    random, zero = np.random.default_rng(2), TOKENIZER.timestamp_begin
    for window in (speech.window(8.0, random) for _ in range(60)):
        assert len(window.places) == len(window.tokens)
        for token, place in zip(window.tokens, window.places, strict=True):
            if token >= zero:
                assert place == pytest.approx((token - zero) * TICK_S, abs=TICK_S)
        told = [place for place in window.places if not np.isnan(place)]
        assert told == sorted(told) and all(0 <= place <= 8.0 for place in told)
        nowhere = {token for token, place in zip(window.tokens, window.places, strict=True) if np.isnan(place)}
        assert nowhere <= {TOKENIZER.no_timestamps, TOKENIZER.no_speech}
    batch = speech.batch(2, 0, 6.0, 8)
    assert batch.places.shape == batch.targets.shape
    assert torch.equal(batch.places.isnan(), (batch.targets == IGNORED) | torch.isin(batch.targets, torch.tensor(NOWHERE)))


def test_most_windows_are_of_one_voice(speech: Speech) -> None:
    random, size = np.random.default_rng(4), 6 * RATE
    rows = [speech._row(size, size, 4, 0.0, random) for _ in range(200)]
    voices = [{one.said.voice for one in row.spoken} for row in rows if len(row.spoken) > 2]
    alike = sum(len(heard) == 1 for heard in voices) / len(voices)
    assert alike == pytest.approx(training_windows.ONE_VOICE, abs=0.15) and len(voices) > 150
    assert set.union(*voices) == {voice.name for voice in VOICES}


def test_a_token_stands_where_the_middle_of_its_letters_does() -> None:
    assert training_windows._middles([2, 6, 2]) == pytest.approx((0.1, 0.5, 0.9))


def test_without_times_there_is_little_to_hear(speech: Speech) -> None:
    random = np.random.default_rng(3)
    plain = [window for window in (speech.window(25.0, random) for _ in range(60)) if window.tokens[0] == TOKENIZER.no_timestamps]
    assert len(plain) > 10
    assert max(max(window.places[1:]) for window in plain) < training_windows.PLAIN_S
    assert max(len(window.tokens) for window in plain) > 30, "more than one sentence"


def test_padding_is_silence_or_nothing(speech: Speech) -> None:
    random = np.random.default_rng(1)
    assert all(not window.sound[window.filled :].any() for window in (speech.window(8.0, random) for _ in range(30)))


def test_mels_are_whispers_own() -> None:
    wave = torch.from_numpy(np.random.default_rng(0).standard_normal((2, RATE)).astype(np.float32))
    torch.testing.assert_close(log_mels(wave)[1], log_mel_spectrogram(wave[1]))


def test_another_throat_is_higher_and_shorter(speech: Speech, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_windows, "OTHER_THROAT", 1.0)
    monkeypatch.setattr(training_windows, "THROATS", (1.1, 1.1))
    tone = np.sin(2 * np.pi * 400 * np.arange(RATE) / RATE)
    said = training_windows._said(
        training_windows.Utterance("tone", (tone * 30000).astype(np.int16), (1,), (0.5,), (1,)), np.random.default_rng(0)
    )
    assert len(said) == round(RATE / 1.1)
    assert np.argmax(np.abs(np.fft.rfft(said))) * RATE / len(said) == pytest.approx(440, abs=2)
