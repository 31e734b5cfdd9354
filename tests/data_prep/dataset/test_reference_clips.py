"""Six seconds of each speaker, the same for the same clips."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.waveform import MASTER_RATE, Audio, encode_flac
from overtone.data_prep.dataset.reference_clips import LENGTH, choose_clips, make_reference_path, make_reference_wav, write_references
from overtone.finetune.storage.synthetic_audio_mark import SyntheticMark, read_synthetic_mark
from tests.data_prep.dataset.test_train_val_split import clip


def test_the_reference_is_the_cleanest_clip_above_six_seconds_or_several_joined() -> None:
    rows = [clip("aa", 0, seconds=6.5, snr=20), clip("aa", 10, seconds=8.9, snr=30), clip("aa", 20, seconds=18, snr=60)]
    assert [row.start for row in choose_clips(rows)] == [10]
    assert [row.start for row in choose_clips(rows[2:])] == [20]
    short = [clip("aa", 0, seconds=2.5, snr=20), clip("aa", 10, seconds=3.0, snr=30), clip("aa", 20, seconds=1.0, snr=25)]
    assert [row.start for row in choose_clips(short)] == [10, 20, 0]
    assert [row.start for row in choose_clips(short[:1])] == [0, 0, 0]
    with pytest.raises(ValueError, match="no clip"):
        choose_clips([])


def test_a_reference_has_exactly_the_length_that_all_have() -> None:
    clips = [Audio(np.full(size, 0.5, np.float32), MASTER_RATE) for size in (100_000, 50_001)]
    samples, rate = soundfile.read(io.BytesIO(make_reference_wav(clips)))
    assert (len(samples), rate) == (LENGTH, MASTER_RATE) == (144_000, 24_000)
    assert samples[-1] == 0
    assert samples[72_000] == 0.5


def test_references_use_training_clips_only_and_old_ones_are_removed(tmp_path) -> None:
    rows = [
        clip(name, 0, seconds=6.5, speaker=speaker, snr=snr).model_copy(update={"split": split})
        for name, speaker, snr, split in (("aa", "a/b", 20, "train"), ("bb", "a/b", 60, "val"), ("cc", "you", 20, "train"))
    ]
    for value, row in enumerate(rows, start=1):
        (tmp_path / "clips").mkdir(exist_ok=True)
        (tmp_path / row.audio).write_bytes(encode_flac(Audio(np.tile(np.float32([value / 10, -value / 10]), 78_000), MASTER_RATE)))
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs" / "gone.wav").touch()
    write_references(tmp_path, rows)
    assert sorted(path.name for path in tmp_path.glob("refs/*")) == ["a%2fb.wav", "you.wav"]
    samples, _ = soundfile.read(tmp_path / make_reference_path("a/b"))
    assert samples[1000] == pytest.approx(0.1, abs=1e-4)
    before = (tmp_path / make_reference_path("you")).stat().st_mtime_ns
    write_references(tmp_path, rows)
    assert (tmp_path / make_reference_path("you")).stat().st_mtime_ns == before


def test_the_reference_of_a_synthetic_voice_is_marked(tmp_path) -> None:
    row, mark = clip("aa", 0, seconds=6.5).model_copy(update={"split": "train"}), SyntheticMark("me")
    (tmp_path / "clips").mkdir()
    (tmp_path / row.audio).write_bytes(encode_flac(Audio(np.tile(np.float32([0.1, -0.1]), 78_000), MASTER_RATE), mark.comment))
    write_references(tmp_path, [row])
    (path,) = (tmp_path / "refs").iterdir()
    assert read_synthetic_mark(path) == mark
