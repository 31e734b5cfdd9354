"""Measures of sounds and texts with known values."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.clips.measurements import (
    find_longest_pause,
    measure_background,
    measure_clip,
    measure_noise_power,
    measure_outside_speech_share,
    measure_pitch,
    measure_repeated_share,
)
from overtone.data_prep.segmentation.clip_segmentation import Piece, TextUnit, WhisperScores
from overtone.data_prep.segmentation.vad import Region

SECOND = MASTER_RATE
REGION = Region(SECOND, 3 * SECOND)
SURE = WhisperScores(
    language="english", avg_logprob=-0.2, compression_ratio=1.2, no_speech_prob=0.1, temperature=0, complete=True, language_prob=0.99
)


def recording(noise: float = 0.001, speech: float = 0.1) -> np.ndarray:
    generator = np.random.default_rng(0)
    samples = generator.normal(0, noise, 4 * SECOND)
    samples[REGION.start : REGION.stop] += generator.normal(0, speech, REGION.stop - REGION.start)
    return samples.astype(np.float32)


def piece(text: str = "x" * 20, start: float = 0.9, stop: float = 3.2, heard: tuple[WhisperScores, ...] = ()) -> Piece:
    units = [TextUnit(text=text, start=0, stop=1)] if not heard else [TextUnit(text=text, start=0, stop=1, heard=one) for one in heard]
    return Piece(int(start * SECOND), int(stop * SECOND), tuple(units))


def word(middle: float, text: str = " word") -> TextUnit:
    return TextUnit(text=text, start=round((middle - 0.1) * SECOND), stop=round((middle + 0.1) * SECOND), heard=SURE)


def test_measures_of_a_recording_with_known_levels() -> None:
    samples = recording()
    quality = measure_clip(samples, piece(), [REGION], measure_noise_power(samples, [REGION]), "english")
    assert quality.chars_per_second == 10
    assert quality.speech_share == pytest.approx(2 / 2.3, abs=0.001)
    assert quality.snr_db == pytest.approx(40, abs=0.5)
    assert quality.edge_energy_db == (pytest.approx(-40, abs=1), pytest.approx(-40, abs=1))
    assert quality.peak_dbfs == pytest.approx(20 * np.log10(np.abs(samples[int(0.9 * SECOND) : int(3.2 * SECOND)]).max()), abs=0.1)
    assert (quality.clipped_share, quality.longest_pause) == (0, 0)


def test_the_background_is_what_is_heard_between_the_words_of_a_clip_and_around_it() -> None:
    samples, speech = recording(noise=0.003), REGION
    level = pytest.approx(-30.5, abs=1)
    assert measure_background(samples, speech.start - SECOND // 5, speech.stop) == level
    assert measure_background(samples, speech.start, speech.stop) == level, "the pauses around a clip that was cut closely"
    assert measure_background(samples[speech.start : speech.stop], 0, 2 * SECOND) == pytest.approx(0, abs=1), "no pause at all"
    noisy = samples + np.random.default_rng(1).normal(0, 0.03, len(samples)).astype(np.float32)
    assert measure_background(noisy, speech.start, speech.stop) == pytest.approx(-11, abs=1)
    samples[: speech.start] = 0
    assert measure_background(samples, speech.start, speech.stop) == -100, "a decoder's digital silence"
    assert measure_background(samples, 0, SECOND // 2) is None


def test_measures_that_need_whisper_are_unknown_without_it() -> None:
    quality = measure_clip(recording(), piece(), [REGION], None, "english")
    unknown = ("avg_logprob", "compression_ratio", "no_speech_prob", "text_complete", "language_prob", "repeated_share")
    assert all(getattr(quality, name) is None for name in (*unknown, "outside_speech_share", "asr_error", "snr_db"))


def test_a_cut_inside_speech_has_high_edge_energy() -> None:
    samples = recording()
    quality = measure_clip(samples, piece(start=1.5), [REGION], measure_noise_power(samples, [REGION]), "english")
    assert quality.edge_energy_db[0] == pytest.approx(0, abs=1)
    assert quality.edge_energy_db[1] == pytest.approx(-40, abs=1)


def test_clipped_samples_are_counted() -> None:
    samples = np.clip(recording(speech=1.0), -1, 1)
    quality = measure_clip(samples, piece(start=1, stop=3), [REGION], measure_noise_power(samples, [REGION]), "english")
    assert quality.clipped_share == pytest.approx(0.317, abs=0.01)  # outside one standard deviation
    assert quality.peak_dbfs == 0


def test_digital_silence_and_speech_without_a_pause_are_measured() -> None:
    samples = recording(noise=0)
    quality = measure_clip(samples, piece(), [REGION], measure_noise_power(samples, [REGION]), "english")
    assert quality.snr_db == 100
    assert quality.edge_energy_db == (-100, -100)
    everywhere = [Region(0, 4 * SECOND)]
    assert measure_noise_power(samples, everywhere) is None
    assert measure_clip(samples, piece(), everywhere, None, "english").snr_db is None


def test_the_least_confident_window_determines_the_measures_of_a_clip() -> None:
    unsure = {"avg_logprob": -0.9, "compression_ratio": 2.0, "no_speech_prob": 0.5, "complete": False, "language_prob": 0.6}
    quality = measure_clip(recording(), piece(heard=(SURE, SURE.model_copy(update=unsure))), [REGION], None, "english")
    assert (quality.avg_logprob, quality.compression_ratio, quality.no_speech_prob, quality.text_complete) == (-0.9, 2.0, 0.5, False)
    assert quality.language_prob == 0.6


def test_a_failed_transcription_is_part_of_the_measures() -> None:
    failed = TextUnit(text="", start=SECOND, stop=2 * SECOND, error="RuntimeError: no")
    quality = measure_clip(recording(), Piece(SECOND, 3 * SECOND, (word(2.5), failed)), [REGION], None, "english")
    assert quality.asr_error == "RuntimeError: no"


def test_the_longest_pause_is_the_one_inside() -> None:
    speech = [Region(0, SECOND), Region(2 * SECOND, 3 * SECOND), Region(3 * SECOND + SECOND // 2, 4 * SECOND)]
    assert find_longest_pause(speech) == 1.0
    assert find_longest_pause(speech[:1]) == 0.0
    found = measure_clip(recording(), Piece(2 * SECOND, 4 * SECOND, (word(3),)), speech, None, "english")
    assert found.longest_pause == 0.5


@pytest.mark.parametrize("height", [90, 220, 400])
def test_the_pitch_ignores_quiet_frames(height) -> None:
    vowel = sum(np.sin(2 * np.pi * height * k * np.arange(SECOND) / SECOND) / k for k in range(1, 8))
    hiss = np.random.default_rng(0).normal(0, 0.05, SECOND)
    assert measure_pitch(np.concatenate([0.1 * vowel, hiss]).astype(np.float32)) == pytest.approx(height, rel=0.01)


def test_silence_and_sounds_shorter_than_a_frame_have_no_pitch() -> None:
    assert measure_pitch(np.zeros(SECOND, np.float32)) is None
    assert measure_pitch(np.ones(1000, np.float32)) is None
    assert measure_pitch(np.zeros(0, np.float32)) is None


def test_the_pitch_of_a_low_voice_is_measured(railway) -> None:
    assert 90 < measure_pitch(railway.samples) < 115


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("The night train leaves from platform seven.", 0.0),
        ("It was very, very good, and that that he said was true.", 0.0),
        ("No, no, no!", 1 / 3),
        ("you you you you you you you you you you", 0.8),
        ("Thanks for watching. Thanks for watching. Thanks for watching.", 2 / 3),
        ("I think, I think so.", 0.4),
        ("谢谢谢谢谢谢", 4 / 6),
        ("今天天气很好", 0.0),
        ("…", 0.0),
        ("", 0.0),
    ],
)
def test_the_share_of_repeated_words_is_measured(text, share) -> None:
    assert measure_repeated_share(text) == pytest.approx(share, abs=0.001)


def test_the_share_of_words_outside_speech_is_measured() -> None:
    speech = [Region(SECOND, 2 * SECOND), Region(5 * SECOND, 6 * SECOND)]
    assert measure_outside_speech_share([word(1.5), word(5.5)], speech) == 0
    assert measure_outside_speech_share([word(1.5), word(3.5), word(4.0), word(5.5)], speech) == 0.5
    assert measure_outside_speech_share([word(2.15)], speech) == 0, "within the error of Whisper's times"
    assert measure_outside_speech_share([word(1.5)], []) == 1
    assert measure_outside_speech_share([word(1.5), word(3.5), word(5.5)], speech) == 0, "one wrong time among right ones"
    assert measure_outside_speech_share([word(3.5), word(4.0)], speech) == 1
    assert measure_outside_speech_share([], speech) is None


def test_the_noise_of_hours_is_measured_without_a_copy_of_them() -> None:
    samples = np.full(600 * MASTER_RATE, 0.01, np.float32)
    tracemalloc.start()
    assert measure_noise_power(samples, [Region(0, MASTER_RATE)]) == pytest.approx(1e-4, rel=1e-3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < samples.nbytes / 20
