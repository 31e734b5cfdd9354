"""Marked files decode to the samples, have the mark in the usual field of the container, and keep it through `data_prep`."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.waveform import Audio, encode_flac
from overtone.data_prep.dataset.export_formats import _write_clip
from overtone.finetune.storage.synthetic_audio_mark import SOFTWARE, SyntheticMark, make_comment_of_copy, read_synthetic_mark
from overtone.recipes.speech.marked_audio_encoding import encode_marked_flac, encode_marked_wav, wav_header

WAVE = np.linspace(-0.9, 0.9, 4801, dtype=np.float32)
MARK = SyntheticMark("my-voice")


@pytest.mark.parametrize("encode", [encode_marked_flac, encode_marked_wav])
def test_samples_and_tags_are_read_by_libsndfile(encode: object) -> None:
    data = encode(WAVE, 24_000, MARK)  # type: ignore[operator]
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        assert file.comment == MARK.comment and file.software.startswith(SOFTWARE) and file.samplerate == 24_000
        read = file.read(dtype="float32")
    np.testing.assert_allclose(read, WAVE, atol=0.5 / 32768)
    assert abs(float((read - WAVE).mean())) < 0.02 / 32768, "rounded to nearest: rounding down would shift all samples by half a step"


def test_a_header_has_even_chunks_and_true_lengths() -> None:
    for model in ("a", "ab"):
        header = wav_header(16_000, 10, SyntheticMark(model))
        assert len(header) % 2 == 0
        assert int.from_bytes(header[4:8], "little") == len(header) - 8 + 20 and int.from_bytes(header[-4:], "little") == 20


def test_the_mark_is_kept_by_copies_that_data_prep_makes(tmp_path: Path) -> None:
    (tmp_path / "spoken.wav").write_bytes(encode_marked_wav(WAVE, 24_000, MARK))
    (tmp_path / "clip.flac").write_bytes(encode_flac(Audio(WAVE, 24_000), make_comment_of_copy(tmp_path / "spoken.wav")))
    assert read_synthetic_mark(tmp_path / "clip.flac") == MARK
    _write_clip(tmp_path / "clip.flac", tmp_path / "out" / "clip.wav")
    assert read_synthetic_mark(tmp_path / "out" / "clip.wav") == MARK
    (tmp_path / "real.flac").write_bytes(encode_flac(Audio(WAVE, 24_000)))
    _write_clip(tmp_path / "real.flac", tmp_path / "out" / "real.wav")
    assert make_comment_of_copy(tmp_path / "out" / "real.wav") == ""
