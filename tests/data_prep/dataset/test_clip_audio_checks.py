"""Rate, length and problems of a clip, found by decoding it once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from overtone.data_prep.audio.stream_reader import AudioError
from overtone.data_prep.dataset.clip_audio_checks import AudioInfo, inspect_clip, inspect_clips
from overtone.finetune.storage import files

NOISE = np.random.default_rng(0).uniform(-0.3, 0.3, 44_100)


@pytest.mark.parametrize("name", ["a.flac", "a.wav", "a.ogg", "a.m4a"])
def test_rate_channels_and_length(name: str, tmp_path: Path, write_sound: Callable[..., Path]) -> None:
    path = write_sound(tmp_path / name, NOISE, 44_100)
    sound = inspect_clip(path)
    assert (sound.rate, sound.channels, sound.digest) == (44_100, 1, files.digest(path))
    assert sound.seconds == pytest.approx(1.0, abs=0.05 if name == "a.m4a" else 0.001)


def test_the_length_counts_at_the_master_rate(tmp_path: Path, write_sound: Callable[..., Path]) -> None:
    assert inspect_clip(write_sound(tmp_path / "a.wav", np.stack([NOISE, NOISE], axis=1), 44_100)) == AudioInfo(
        44_100, 2, 44_100, files.digest(tmp_path / "a.wav")
    )
    assert inspect_clip(tmp_path / "a.wav").count_samples(24_000) == 24_000


def test_unusable_clips_have_a_reason(tmp_path: Path, write_sound: Callable[..., Path]) -> None:
    write_sound(tmp_path / "nan.wav", np.where(np.arange(44_100) == 40_000, np.nan, NOISE), 44_100)
    write_sound(tmp_path / "infinite.wav", np.where(np.arange(44_100) == 9, np.inf, NOISE), 44_100)
    write_sound(tmp_path / "silent.wav", np.full(1000, 0.1), 44_100)
    write_sound(tmp_path / "empty.wav", np.zeros(0), 44_100)
    whole = write_sound(tmp_path / "whole.wav", NOISE, 44_100).read_bytes()
    (tmp_path / "truncated.wav").write_bytes(whole[: len(whole) // 2])
    compressed = write_sound(tmp_path / "whole.flac", NOISE, 44_100).read_bytes()
    (tmp_path / "stops.flac").write_bytes(compressed[: len(compressed) // 2])
    (tmp_path / "garbage.wav").write_bytes(bytes(range(256)))
    names = ["nan.wav", "infinite.wav", "silent.wav", "empty.wav", "truncated.wav", "stops.flac", "garbage.wav", "absent.wav"]
    heard = [inspect_clips(tmp_path / name for name in names)[tmp_path / name] for name in names]
    assert [sound.reason if isinstance(sound, AudioError) else sound for sound in heard] == [
        *("nan", "nan", "silent", "empty", "truncated"),
        *("unreadable", "unreadable", "no_file"),
    ]


def test_an_impossible_file_name_counts_as_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match="no_file: cannot access the file: File name too long"):
        inspect_clip(tmp_path / ("x" * 5000))


def test_each_file_is_decoded_once(tmp_path: Path, write_sound: Callable[..., Path]) -> None:
    path = write_sound(tmp_path / "a.wav", NOISE, 44_100)
    assert list(inspect_clips([path, path])) == [path]
