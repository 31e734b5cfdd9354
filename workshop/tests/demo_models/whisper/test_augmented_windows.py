"""Training windows: reproducible, with tokens that match the audio."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from whisper.audio import log_mel_spectrogram
from whisper.tokenizer import get_tokenizer

from workshop.demo_models.corpus.voices import VOICES
from workshop.demo_models.whisper import augmented_windows
from workshop.demo_models.whisper.augmented_windows import IGNORED, RATE, TICK, TICK_S, WhisperDataset, compute_log_mels

TOKENIZER = get_tokenizer(multilingual=False)
NOWHERE = [TOKENIZER.no_timestamps, TOKENIZER.no_speech, TOKENIZER.eot]


@pytest.fixture(scope="module")
def speech(noise_corpus: Path) -> WhisperDataset:
    return WhisperDataset(noise_corpus, TOKENIZER)


def test_the_dataset_has_all_training_sentences_and_reconstructions(speech: WhisperDataset) -> None:
    assert len(speech.sentences) == 3 * len(VOICES), "two per voice, and the reconstruction of one"
    again = speech.sentences[2 * len(VOICES) :]
    assert [one.tokens for one in again] == [one.tokens for one in speech.sentences[: 2 * len(VOICES) : 2]]


def test_a_batch_depends_only_on_seed_and_number(speech: WhisperDataset) -> None:
    one, same, other = speech.batch(0, 3, 4.0, 3), speech.batch(0, 3, 4.0, 3), speech.batch(0, 4, 4.0, 3)
    torch.testing.assert_close(one.mels, same.mels, rtol=0, atol=0)
    assert torch.equal(one.targets, same.targets) and one.phones == same.phones
    assert one.mels.shape == other.mels.shape == (3, 80, 400)
    assert not torch.equal(one.mels, other.mels)


def test_inputs_are_the_shifted_targets(speech: WhisperDataset) -> None:
    batch = speech.batch(1, 0, 6.0, 8)
    assert set(batch.inputs[:, 0].tolist()) == {TOKENIZER.sot}
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        tokens = [token for token in targets if token != IGNORED]
        assert inputs[1 : len(tokens)] == tokens[:-1] and tokens[-1] == TOKENIZER.eot


def test_tokens_match_the_content_of_the_window(speech: WhisperDataset) -> None:
    """Timestamps increase, the text is from the grammar, a cut sentence has a start and no end, and noise has no words."""
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
        assert len(times) % 2 == (0 if window.phones else 1), "a cut sentence has only a start, and no phones"
    assert {len([token for token in window.tokens if token >= zero]) % 2 for window in timed} == {0, 1}
    assert all(set(window.tokens[1:]) <= text and window.phones for window in plain)
    assert all(not window.phones for window in noise)
    assert all(len(window.tokens) < 448 for window in windows)


def test_every_token_has_its_time_in_the_audio(speech: WhisperDataset) -> None:
    """Timestamps are at their time, and text tokens are in order between those of their sentence; other tokens have no time."""
    random, zero = np.random.default_rng(2), TOKENIZER.timestamp_begin
    for window in (speech.window(8.0, random) for _ in range(60)):
        assert len(window.places) == len(window.tokens)
        for token, place in zip(window.tokens, window.places, strict=True):
            if token >= zero:
                assert place == pytest.approx((token - zero) * TICK_S, abs=TICK_S)
        places = [place for place in window.places if not np.isnan(place)]
        assert places == sorted(places) and all(0 <= place <= 8.0 for place in places)
        nowhere = {token for token, place in zip(window.tokens, window.places, strict=True) if np.isnan(place)}
        assert nowhere <= {TOKENIZER.no_timestamps, TOKENIZER.no_speech}
    batch = speech.batch(2, 0, 6.0, 8)
    assert batch.places.shape == batch.targets.shape
    assert torch.equal(batch.places.isnan(), (batch.targets == IGNORED) | torch.isin(batch.targets, torch.tensor(NOWHERE)))


def test_most_windows_have_one_voice(speech: WhisperDataset) -> None:
    random, size = np.random.default_rng(4), 6 * RATE
    rows = [speech._draw_sequence(size, size, 4, 0.0, random) for _ in range(200)]
    voices = [{one.sentence.voice for one in row.spoken} for row in rows if len(row.spoken) > 2]
    one_voice = sum(len(found) == 1 for found in voices) / len(voices)
    assert one_voice == pytest.approx(augmented_windows.ONE_VOICE, abs=0.15) and len(voices) > 150
    assert set.union(*voices) == {voice.name for voice in VOICES}


def test_the_place_of_a_token_is_the_middle_of_its_letters() -> None:
    assert augmented_windows._find_middles([2, 6, 2]) == pytest.approx((0.1, 0.5, 0.9))


def test_windows_without_timestamps_have_at_most_10_seconds_of_speech(speech: WhisperDataset) -> None:
    random = np.random.default_rng(3)
    plain = [window for window in (speech.window(25.0, random) for _ in range(60)) if window.tokens[0] == TOKENIZER.no_timestamps]
    assert len(plain) > 10
    assert max(max(window.places[1:]) for window in plain) < augmented_windows.PLAIN_S
    assert max(len(window.tokens) for window in plain) > 30, "more than one sentence"


def test_padding_is_silence(speech: WhisperDataset) -> None:
    random = np.random.default_rng(1)
    assert all(not window.sound[window.filled :].any() for window in (speech.window(8.0, random) for _ in range(30)))


def test_mels_equal_those_of_whisper() -> None:
    wave = torch.from_numpy(np.random.default_rng(0).standard_normal((2, RATE)).astype(np.float32))
    torch.testing.assert_close(compute_log_mels(wave)[1], log_mel_spectrogram(wave[1]))


def test_resampling_raises_the_pitch_and_shortens_the_sentence(speech: WhisperDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augmented_windows, "RESAMPLED_SHARE", 1.0)
    monkeypatch.setattr(augmented_windows, "RESAMPLING_FACTORS", (1.1, 1.1))
    tone = np.sin(2 * np.pi * 400 * np.arange(RATE) / RATE)
    wave = augmented_windows._render_sentence(
        augmented_windows.TrainingSentence("tone", (tone * 30000).astype(np.int16), (1,), (0.5,), (1,)), np.random.default_rng(0)
    )
    assert len(wave) == round(RATE / 1.1)
    assert np.argmax(np.abs(np.fft.rfft(wave))) * RATE / len(wave) == pytest.approx(440, abs=2)
