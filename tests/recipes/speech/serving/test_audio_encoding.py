"""Tests of `overtone.recipes.speech.serving.audio_encoding`: each format is decoded by two readers, and streamed if possible."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from overtone.finetune.errors import UserError
from overtone.finetune.storage.synthetic_audio_mark import SyntheticMark, find_synthetic_mark, read_synthetic_mark
from overtone.recipes.speech import marked_audio_encoding
from overtone.recipes.speech.serving import audio_encoding

RATE = 24000
TONE = (0.4 * np.sin(2 * np.pi * 440 * np.arange(RATE * 3 // 2) / RATE)).astype(np.float32)


def encode(name: str, wave: np.ndarray = TONE, step: int = 1920) -> list[bytes]:
    encoder = audio_encoding.make_encoder(name, RATE)
    return [*(encoder.feed(wave[at : at + step]) for at in range(0, len(wave), step)), encoder.finish()]


def decoded(data: bytes) -> tuple[np.ndarray, int]:
    """Decoded by FFmpeg."""
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(audio=0))
    planes = [frame.to_ndarray().astype(np.float64).ravel() / (32768 if frame.format.name.startswith("s16") else 1) for frame in frames]
    return np.concatenate(planes), frames[0].sample_rate


def pitch(wave: np.ndarray, rate: int) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(wave * np.hanning(len(wave))))) * rate / len(wave))


@pytest.mark.parametrize("name", [name for name in audio_encoding.FORMATS if name != "pcm"])
def test_encoded_speech_decodes_to_the_same_wave(name: str) -> None:
    wave, rate = decoded(b"".join(encode(name)))
    assert len(wave) / rate == pytest.approx(1.5, abs=0.1)
    assert pitch(wave, rate) == pytest.approx(440, abs=2) and np.abs(wave).max() == pytest.approx(0.4, abs=0.05)
    if name != "aac":  # which libsndfile does not read
        again, rate = soundfile.read(io.BytesIO(b"".join(encode(name))))
        assert len(again) / rate == pytest.approx(1.5, abs=0.1) and pitch(again, rate) == pytest.approx(440, abs=2)


def test_wav_pcm_and_flac_have_the_same_samples_rounded_to_nearest() -> None:
    exact = (TONE * np.float32(32768)).round().astype("<i2")
    assert b"".join(encode("pcm")) == exact.tobytes()
    for name in ("wav", "flac"):
        again, rate = soundfile.read(io.BytesIO(b"".join(encode(name))), dtype="int16")
        assert rate == RATE and np.array_equal(again, exact)


def test_a_streamed_wav_header_differs_only_in_its_lengths() -> None:
    wave = np.linspace(-1, 1, 500, dtype=np.float32)
    whole, header = (
        marked_audio_encoding.encode_marked_wav(wave, RATE, marked_audio_encoding.UNNAMED),
        marked_audio_encoding.wav_header(RATE),
    )
    size = len(header)
    lengths = [*range(4, 8), *range(size - 4, size)]
    assert all(header[at] == 0xFF for at in lengths)
    assert [header[at] for at in range(size) if at not in lengths] == [whole[at] for at in range(size) if at not in lengths]
    for data in (whole, header + whole[size:]):
        found, rate = soundfile.read(io.BytesIO(data), dtype="float32")
        assert rate == RATE and found == pytest.approx(wave, abs=1e-4)


@pytest.mark.parametrize("name", [name for name in audio_encoding.FORMATS if name != "pcm"])  # which has no tags
def test_a_file_says_that_its_speech_is_synthetic_and_of_which_model(name: str, tmp_path: Path) -> None:
    mark = SyntheticMark("anna’s voice")
    encoder = audio_encoding.make_encoder(name, RATE, mark)
    first = encoder.feed(TONE[:12_000])
    (tmp_path / "spoken").write_bytes(first + encoder.feed(TONE[12_000:]) + encoder.finish())
    assert find_synthetic_mark(tmp_path / "spoken") == "synthetic speech"
    assert read_synthetic_mark(tmp_path / "spoken") == mark
    with av.open(tmp_path / "spoken") as container:  # in the usual field, by an independent reader
        tags = {**container.metadata, **container.streams.audio[0].metadata}
    assert {key.lower(): value for key, value in tags.items()}["comment"] == mark.comment


@pytest.mark.parametrize("name", ["mp3", "opus", "aac", "wav", "pcm"])
def test_bytes_are_returned_before_the_end(name: str) -> None:
    """Most bytes are returned before the last quarter of the samples."""
    pieces = encode(name, np.tile(TONE, 4))
    share = list(itertools.accumulate(map(len, pieces)))[len(pieces) * 3 // 4] / sum(map(len, pieces))
    assert share > 0.65
    assert len([piece for piece in pieces if piece]) >= 4


@pytest.mark.parametrize("name", audio_encoding.FORMATS)
def test_empty_audio_is_encoded_and_loud_audio_is_clipped(name: str) -> None:
    assert isinstance(b"".join(encode(name, TONE[:0])), bytes)
    loud, _ = decoded(b"".join(encode("wav", TONE * 9)))
    assert np.abs(loud).max() <= 1.0


def test_an_unknown_format_is_refused_with_the_supported_ones() -> None:
    assert audio_encoding.available_formats() == tuple(audio_encoding.FORMATS)
    with pytest.raises(UserError, match="'vorbis' is not supported; available: mp3, opus, aac, flac, wav, pcm"):
        audio_encoding.make_encoder("vorbis", RATE)


def test_samples_beyond_full_scale_are_clipped() -> None:
    samples = np.array([1.5, -1.5, 0.5], np.float32)
    encoder = audio_encoding.make_encoder("pcm", RATE)
    assert np.frombuffer(encoder.feed(samples), "<i2").tolist() == [32767, -32768, 16384]
