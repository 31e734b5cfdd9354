"""One gain per recording: speech at -23 LUFS, and no sample above -1 dBFS within reach of a clip."""

from __future__ import annotations

import numpy as np
import pyloudnorm
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.data_prep.audio.waveform import MASTER_RATE, Audio
from overtone.data_prep.clips import loudness
from overtone.data_prep.clips.loudness import compute_gain, measure_loudness
from overtone.data_prep.segmentation.vad import Region

SECOND = MASTER_RATE


def sine(seconds: float, dbfs: float, frequency: float = 997.0, rate: int = MASTER_RATE) -> np.ndarray:
    return (10 ** (dbfs / 20) * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


@pytest.mark.parametrize("rate", [16000, 24000, 48000])
def test_the_loudness_meter_reads_the_reference_tone_of_the_standard(rate) -> None:
    """ITU-R BS.1770: a sine of 997 Hz at full scale in one channel reads -3.01 LUFS; EBU Tech 3341 wants 0.1 LU."""
    assert measure_loudness(Audio(sine(5, 0.0, rate=rate), rate)) == pytest.approx(-3.01, abs=0.1)
    assert measure_loudness(Audio(sine(5, -20.0, rate=rate), rate)) == pytest.approx(-23.01, abs=0.1)
    assert measure_loudness(Audio(sine(0.33, 0.0, rate=rate), rate)) is None
    assert measure_loudness(Audio(np.zeros(rate, np.float32), rate)) is None


@pytest.mark.parametrize("level", [0.02, 0.2, 1.0])
def test_speech_is_normalised_to_minus_23_lufs(level, railway, said) -> None:
    regions = [Region(int(one["start"] * SECOND), int(one["end"] * SECOND)) for one in said]
    master = Audio(level * railway.samples, MASTER_RATE)
    factor = compute_gain(master, regions)
    spoken = np.concatenate([factor * master.samples[region.start : region.stop] for region in regions])
    assert pyloudnorm.Meter(MASTER_RATE).integrated_loudness(spoken.astype(np.float64)) == pytest.approx(-23.0, abs=0.05)


def test_only_speech_determines_the_gain() -> None:
    quiet, loud = sine(5, -40.0), sine(5, -6.0)
    master = Audio(np.concatenate([loud, np.zeros(2 * SECOND, np.float32), quiet, np.zeros(2 * SECOND, np.float32)]), MASTER_RATE)
    assert 20 * np.log10(compute_gain(master, [Region(7 * SECOND, 12 * SECOND)])) == pytest.approx(20.0, abs=0.1)


def test_only_a_peak_near_speech_limits_the_gain() -> None:
    samples = np.concatenate([np.zeros(4 * SECOND, np.float32), sine(2, -40.0), np.zeros(4 * SECOND, np.float32)])
    region = Region(4 * SECOND, 6 * SECOND)
    free = compute_gain(Audio(samples, MASTER_RATE), [region])
    samples[SECOND] = 0.9
    assert compute_gain(Audio(samples, MASTER_RATE), [region]) == free
    samples[int(6.5 * SECOND)] = 0.9
    assert compute_gain(Audio(samples, MASTER_RATE), [region]) == pytest.approx(10 ** (-1 / 20) / 0.9)


def test_silence_and_very_short_speech_get_a_gain_of_one() -> None:
    master = Audio(sine(2, -10.0), MASTER_RATE)
    assert compute_gain(master, []) == 1.0
    assert compute_gain(master, [Region(0, int(0.39 * SECOND))]) == 1.0
    assert compute_gain(master, [Region(0, int(0.41 * SECOND))]) != 1.0
    assert compute_gain(Audio(np.zeros(2 * SECOND, np.float32), MASTER_RATE), [Region(0, 2 * SECOND)]) == 1.0


NOISE = (0.3 * np.random.default_rng(0).standard_normal(20 * SECOND)).astype(np.float32)


@given(st.floats(-60, 12), st.lists(st.integers(0, 20 * SECOND), min_size=2, max_size=8, unique=True))
def test_no_sample_near_speech_exceeds_the_peak_limit(level, edges) -> None:
    edges = sorted(edges)[: len(edges) // 2 * 2]
    regions = [Region(*pair) for pair in zip(edges[::2], edges[1::2], strict=True)]
    master = Audio(np.float32(10 ** (level / 20)) * NOISE, MASTER_RATE)
    factor = compute_gain(master, regions)
    if sum(region.seconds for region in regions) < 0.4:
        assert factor == 1.0
        return
    for region in regions:
        reached = master.samples[max(region.start - SECOND, 0) : region.stop + SECOND]
        assert factor * np.abs(reached).max() <= 10 ** (-1 / 20) + 1e-6


def test_the_loudness_of_a_long_recording_is_estimated_from_parts(railway, monkeypatch) -> None:
    """The part comes from all over: the louder half is heard."""
    monkeypatch.setattr(loudness, "MEASURED_SECONDS", 60.0)
    samples = np.concatenate([np.resize(railway.samples, 120 * SECOND), 2 * np.resize(railway.samples, 120 * SECOND)])
    regions = [Region(start, start + 5 * SECOND) for start in range(0, len(samples), 6 * SECOND)]
    whole = np.concatenate([samples[region.start : region.stop] for region in regions])
    assert len(whole) > 3 * 60 * SECOND
    exact = -23.0 - measure_loudness(Audio(whole, MASTER_RATE))
    factor = compute_gain(Audio(samples, MASTER_RATE), regions)
    assert factor < 10 ** (-1 / 20) / np.abs(samples).max()  # no peak limits it
    assert 20 * np.log10(factor) == pytest.approx(exact, abs=0.5)
