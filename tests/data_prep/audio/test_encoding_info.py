"""The encoding of a recording: lossless or not, and its bit rate."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.encoding_info import read_encoding


@pytest.mark.parametrize(
    ("name", "subtype", "lossless"),
    [
        ("a.wav", "PCM_16", True),
        ("a.flac", "PCM_24", True),
        ("b.wav", "PCM_U8", False),
        ("c.wav", "ULAW", False),
        ("d.ogg", "VORBIS", False),
    ],
)
def test_only_encodings_without_loss_are_lossless(tmp_path, name, subtype, lossless) -> None:
    soundfile.write(tmp_path / name, 0.1 * np.random.default_rng(0).standard_normal(16_000), 16_000, subtype=subtype)
    assert read_encoding(tmp_path / name, 1.0).lossless is lossless


def test_the_bit_rate_is_that_of_the_file(tmp_path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000), 16_000, subtype="PCM_16")
    assert read_encoding(tmp_path / "a.wav", 1.0).kilobits == pytest.approx(256, rel=0.01)
    (tmp_path / "b.m4a").write_bytes(bytes(1000))
    assert read_encoding(tmp_path / "b.m4a", 2.0) == (False, 4.0)
    assert read_encoding(tmp_path / "missing.wav", 1.0) == (False, 0.0)
