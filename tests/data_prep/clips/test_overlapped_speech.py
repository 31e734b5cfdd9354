"""Two voices at once, on mixtures of the embedded sample's two voices; neither is one that the network was fitted on."""

from __future__ import annotations

import numpy as np
import pytest

from overtone.data_prep.audio.waveform import MASTER_RATE, Samples, read_audio
from overtone.data_prep.clips import overlapped_speech
from overtone.data_prep.clips.overlapped_speech import FEWEST_FRAMES, measure_overlap
from overtone.data_prep.clips.quality_rules import MOST_OVERLAP
from overtone.finetune.storage import demo_models

SAMPLE = demo_models.data_folder() / "sample"
SECONDS = 4


@pytest.fixture(scope="module")
def voices() -> tuple[list[Samples], list[Samples]]:
    """Clips of four seconds of each voice, at the same level."""
    return read_clips("rms/workshop.wav"), read_clips("slt/harbour.flac")


def read_clips(name: str) -> list[Samples]:
    samples = read_audio(SAMPLE / name, MASTER_RATE).samples
    clips = samples[: len(samples) // (SECONDS * MASTER_RATE) * SECONDS * MASTER_RATE].reshape(-1, SECONDS * MASTER_RATE)
    return [clip * np.float32(0.05 / np.sqrt(np.mean(np.square(clip)))) for clip in clips[:6]]


def mix(one: Samples, other: Samples, below: float) -> Samples:
    return one + other * np.float32(10 ** (-below / 20))


def test_one_voice_is_not_overlapped(voices) -> None:
    found = [measure_overlap(clip) for own in voices for clip in own]
    assert all(share is not None and share <= MOST_OVERLAP for share in found), found


@pytest.mark.parametrize("below", [0, 6])
def test_two_voices_at_once_are_overlapped_whichever_is_louder(voices, below: float) -> None:
    low, high = voices
    found = [measure_overlap(mix(*pair, below)) for pair in (*zip(low, high, strict=True), *zip(high, low, strict=True))]
    assert sum(share > MOST_OVERLAP for share in found) >= 0.9 * len(found), found


def test_overlap_in_half_of_a_clip_is_found(voices) -> None:
    half = np.repeat([1.0, 0.0], SECONDS * MASTER_RATE // 2).astype(np.float32)
    found = [measure_overlap(mix(one, other * half, 3)) for one, other in zip(*voices, strict=True)]
    assert sum(share > MOST_OVERLAP for share in found) >= 0.8 * len(found), found


def test_neither_the_level_nor_telephone_sound_changes_the_result(voices) -> None:
    clip = mix(voices[0][0], voices[1][0], 3)
    found = measure_overlap(clip)
    assert measure_overlap(clip * np.float32(0.01)) == pytest.approx(found, abs=0.03)
    spectrum = np.fft.rfft(clip)
    spectrum[np.fft.rfftfreq(len(clip), 1 / MASTER_RATE) > 3400] = 0
    assert measure_overlap(np.fft.irfft(spectrum, len(clip)).astype(np.float32)) == pytest.approx(found, abs=0.03)


def test_two_steady_pitches_are_overlapped_and_one_with_a_subharmonic_is_not() -> None:
    """A subharmonic, as of a creaky voice, is not a second pitch."""
    time = np.arange(2 * MASTER_RATE) / MASTER_RATE

    def sing(pitch: float) -> Samples:
        wavering = 2 * np.pi * pitch * (time + 0.004 * np.sin(5 * time))
        return 0.05 * sum(np.sin(number * wavering) / number for number in range(1, 12)).astype(np.float32)

    both = overlapped_speech.measure_frames(sing(120) + sing(205))[0]
    creaky = overlapped_speech.measure_frames(sing(120) + sing(60) / 4)[0]
    assert np.median(both[:, 1]) > np.median(creaky[:, 1]) + 6, "decibels of the second pitch"


@pytest.mark.parametrize("length", [0, 1, 1000, FEWEST_FRAMES * MASTER_RATE // 50 - 2000])
def test_too_short_a_clip_has_no_share(length: int) -> None:
    assert measure_overlap(np.random.default_rng(0).standard_normal(length).astype(np.float32)) is None


def test_silence_and_noise_hold_no_two_voices() -> None:
    assert measure_overlap(np.zeros(2 * MASTER_RATE, np.float32)) == 0
    assert measure_overlap(0.1 * np.random.default_rng(0).standard_normal(2 * MASTER_RATE).astype(np.float32)) == 0


def test_a_long_clip_is_measured_in_blocks(voices, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = np.concatenate(voices[0])
    whole = measure_overlap(clip)
    monkeypatch.setattr(overlapped_speech, "BLOCK", 300)
    assert measure_overlap(clip) == pytest.approx(whole, abs=0.01)
