"""Decoding, checks, channel mixing and resampling of generated files."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given
from hypothesis import strategies as st

from overtone.data_prep.audio import stream_reader
from overtone.data_prep.audio.waveform import (
    MASTER_RATE,
    SPEECH_RATE,
    Audio,
    AudioError,
    AudioLimits,
    convert_position,
    encode_flac,
    fade_edges,
    load_track,
    probe_recording,
    read_audio,
    read_audio_unchanged,
)
from tests.data_prep.conftest import peak_frequency
from tests.data_prep.crafted_flac import flac as crafted

RATES = (8000, 16000, 22050, 24000, 44100, 48000)


def tone(rate: int, seconds: float = 2.0, frequency: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


@pytest.mark.parametrize("rate", RATES)
def test_a_tone_keeps_its_pitch_its_length_and_its_level_at_both_rates(rate, tmp_path, write_sound) -> None:
    path = write_sound(tmp_path / "tone.wav", tone(rate), rate)
    for sound, target in zip(load_track(path, probe_recording(path), MASTER_RATE, SPEECH_RATE), (MASTER_RATE, SPEECH_RATE), strict=True):
        assert sound.rate == target
        assert len(sound.samples) == 2 * target
        assert peak_frequency(sound.samples, target, 440) == pytest.approx(440, abs=0.05)
        assert np.abs(sound.samples[target // 2 : -target // 2]).max() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("rate", [44100, 48000, 96000])
def test_resampling_has_no_aliases(rate, tmp_path) -> None:
    soundfile.write(tmp_path / "high.wav", tone(rate, frequency=15000.0), rate, subtype="FLOAT")
    master = load_track(tmp_path / "high.wav", probe_recording(tmp_path / "high.wav"), MASTER_RATE)[0].samples
    assert 20 * np.log10(np.abs(master[4800:-4800]).max() / 0.5) < -150


def test_decoding_in_blocks_gives_the_samples_of_one_piece(tmp_path, write_sound, monkeypatch) -> None:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 30_001).astype(np.float32)
    path = write_sound(tmp_path / "noise.flac", noise, 44100)
    monkeypatch.setattr(stream_reader, "BLOCK", 997)
    ours = load_track(path, probe_recording(path), MASTER_RATE)[0].samples
    whole = soundfile.read(path, dtype="float32")[0]
    theirs = soxr.resample(whole - whole.mean(), 44100, MASTER_RATE, quality="VHQ")
    assert abs(len(ours) - len(theirs)) <= 1
    shortest = min(len(ours), len(theirs))
    assert np.abs(ours[:shortest] - theirs[:shortest]).max() < 1e-5


@given(st.integers(0, 10**10), st.sampled_from(RATES), st.sampled_from(RATES))
def test_positions_change_rate_to_the_nearest_sample(position, from_rate, rate) -> None:
    moved = convert_position(position, from_rate, rate)
    assert abs(2 * (moved * from_rate - position * rate)) <= from_rate
    if rate >= from_rate:
        assert convert_position(moved, rate, from_rate) == position


@pytest.mark.parametrize(
    ("channels", "weights"),
    [
        (lambda x: [x, x], (0.5, 0.5)),
        (lambda x: [x, np.zeros_like(x)], (1.0, 0.0)),
        (lambda x: [1e-4 * x, x], (0.0, 1.0)),
        (lambda x: [0.5 * x, -x], (0.0, 1.0)),
        (lambda x: [x, x, x], (1 / 3, 1 / 3, 1 / 3)),
    ],
    ids=["equal", "one dead", "one faint", "opposite", "three"],
)
def test_channels_are_mixed_without_losing_the_voice(channels, weights, tmp_path, write_sound) -> None:
    path = write_sound(tmp_path / "many.flac", np.stack(channels(tone(24000)), axis=1), 24000)
    track = probe_recording(path)
    assert track.weights == pytest.approx(weights)
    assert np.abs(load_track(path, track, MASTER_RATE)[0].samples).max() == pytest.approx(0.5, abs=0.01)


def test_a_constant_offset_is_removed(tmp_path, write_sound) -> None:
    path = write_sound(tmp_path / "offset.flac", tone(24000) + 0.3, 24000)
    assert abs(load_track(path, probe_recording(path), MASTER_RATE)[0].samples.mean()) < 1e-4


def bad_file(kind, path, write_sound):
    good = tone(16000)
    contents = {"garbage": bytes(range(256)) * 40, "nothing": b"", "text": b"not sound"}
    if kind in contents:
        path.write_bytes(contents[kind])
        return path
    samples = {"no frames": good[:0], "zeros": np.zeros_like(good), "constant": np.full_like(good, 0.2)}.get(kind, good.copy())
    if kind in ("nan", "inf", "3e38"):
        samples[8000] = float(kind)
    return write_sound(path, samples, 16000)


@pytest.mark.parametrize(
    ("kind", "reason", "detail"),
    [
        ("garbage", "unreadable", "soundfile"),
        ("nothing", "unreadable", "0 bytes"),
        ("text", "unreadable", "soundfile"),
        ("no frames", "empty", "no samples"),
        ("zeros", "silent", "2.00 s"),
        ("constant", "silent", "2.00 s"),
        ("nan", "nan", "0.500 s"),
        ("inf", "nan", "0.500 s"),
        ("3e38", "nan", "0.500 s"),
    ],
)
def test_unusable_files_are_refused_with_the_reason(kind, reason, detail, tmp_path, write_sound) -> None:
    with pytest.raises(AudioError, match=detail) as caught:
        probe_recording(bad_file(kind, tmp_path / "bad.wav", write_sound))
    assert caught.value.reason == reason


@pytest.mark.parametrize("ending", ["wav", "mp3", "flac"])
def test_a_truncated_file_is_decoded_with_a_warning(ending, tmp_path, write_sound) -> None:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 5 * 24000).astype(np.float32)
    path = write_sound(tmp_path / f"long.{ending}", noise, 24000)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    track = probe_recording(path)
    assert "truncated" in track.warning or "decoding stopped" in track.warning
    assert 1.0 < track.frames / track.rate < 4.0
    assert len(load_track(path, track, MASTER_RATE)[0].samples) == track.length
    for whole in (lambda: read_audio(path, MASTER_RATE), lambda: read_audio_unchanged(path)):
        with pytest.raises(AudioError, match="truncated"):
            whole()


def test_a_truncated_m4a_has_no_table_of_contents_and_is_unreadable(tmp_path, write_sound) -> None:
    path = write_sound(tmp_path / "long.m4a", tone(24000, 5.0), 24000)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(AudioError) as caught:
        probe_recording(path)
    assert caught.value.reason == "unreadable"


def test_an_offset_is_subtracted_unless_the_file_is_wanted_as_it_is(tmp_path, write_sound) -> None:
    noise = (0.1 + np.random.default_rng(0).uniform(-0.5, 0.5, 5000)).astype(np.float32)
    path = write_sound(tmp_path / "noise.flac", noise, 44100)
    stored = soundfile.read(path, dtype="float32")[0]
    found = read_audio_unchanged(path)
    np.testing.assert_array_equal(found.samples, stored)
    assert found.rate == 44100 and abs(stored.mean()) > 0.09
    np.testing.assert_allclose(read_audio(path, 44100).samples, stored - stored.mean(), atol=1e-6)


def test_flac_is_exact_repeatable_and_saturates() -> None:
    samples = np.array([0.0, 0.5, -0.5, 1.7, -1.7, 1 / 32768], np.float32)
    data = encode_flac(Audio(samples, MASTER_RATE))
    assert data == encode_flac(Audio(samples, MASTER_RATE))
    back, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    assert rate == MASTER_RATE
    assert back.tolist() == [0, 16384, -16384, 32767, -32768, 1]


def test_fades_touch_only_five_milliseconds() -> None:
    ones = Audio(np.ones(2400, np.float32), MASTER_RATE)
    result = fade_edges(ones).samples
    assert result[0] == result[-1] == 0
    assert (result[120:-120] == 1).all()
    assert ones.samples.min() == 1


SHORT = AudioLimits(seconds=60, channels=2, samples=60 * 48_000)


@pytest.mark.parametrize(
    ("content", "message", "stopped"),
    [
        ({"frames": 900 * 384_000, "rate": 384_000, "declared": None}, "900 s or more; at most 60 s", 900),
        ({"frames": 100 * 16_000, "rate": 16_000, "declared": 0}, "60 s or more; at most 60 s", 60),  # the header does not say
        ({"frames": 50 * 16_000, "rate": 16_000, "channels": 3}, "3 channels; at most 2", 50),
        ({"frames": 50 * 96_000, "rate": 96_000, "channels": 2}, "9,600,000 samples or more at 96000 Hz in 2 channels; at most", 50),
        ({"frames": 50 * 96_000, "rate": 96_000, "channels": 2, "declared": 0}, "samples or more at 96000 Hz in 2 channels", 15),
    ],
    ids=["long", "long-undeclared", "channels", "samples", "samples-undeclared"],
)
def test_bounds_hold_for_the_header_and_while_it_is_decoded(content: dict, message: str, stopped: float, tmp_path) -> None:
    (tmp_path / "crafted.flac").write_bytes(crafted(**content))
    blocks: list[None] = []
    with pytest.raises(AudioError, match=message) as caught:
        probe_recording(tmp_path / "crafted.flac", lambda _seconds: blocks.append(None), SHORT)
    assert caught.value.seconds == pytest.approx(stopped, abs=5), "it was decoded beyond the bound"
    assert bool(blocks) == (content.get("declared") == 0), "a header that says too much is enough"


def test_a_flac_that_declares_no_length_is_read_to_its_end(tmp_path) -> None:
    (tmp_path / "piped.flac").write_bytes(crafted(20 * 16_000, 16_000, declared=0))
    assert probe_recording(tmp_path / "piped.flac").frames == 20 * 16_000
