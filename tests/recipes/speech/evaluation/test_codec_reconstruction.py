"""Tests of `overtone.recipes.speech.evaluation.codec_reconstruction`, with the demo's codec."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.waveform import Audio, encode_flac
from overtone.data_prep.audio_codecs.interface import CodecError
from overtone.data_prep.audio_codecs.selection import open_codec
from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models
from overtone.recipes.speech.evaluation import intelligibility
from overtone.recipes.speech.evaluation.codec_reconstruction import reconstruct_recordings
from overtone.recipes.speech.evaluation.evaluation_items import Item, read_items
from overtone.recipes.speech.evaluation.scoring import read_clip
from overtone.recipes.speech.evaluation.systems import Take


def test_the_codec_changes_the_audio_but_not_the_words(tmp_path: Path) -> None:
    item = read_items(demo_models.data_folder() / "new_voice" / "held_out.jsonl", None, None, lambda item: None)[0]
    assert item.recording is not None
    (take,) = reconstruct_recordings([Take(item, item.recording, True)], open_codec("codec-demo"), tmp_path / "clips")
    before, after = read_clip(item.recording), read_clip(take.path)
    assert take == Take(item, tmp_path / "clips" / f"{item.key}.flac", True)
    assert abs(len(before) - len(after)) < 2 * 1920 and np.abs(before[:20_000] - after[:20_000]).max() > 0.01
    transcript = intelligibility.transcribe(intelligibility.load_whisper("whisper-demo-en"), after, "english").text
    errors = intelligibility.count_errors(item.text, transcript, "english")
    assert errors is not None and errors.wrong_words <= errors.words / 3


def wave_at(rate: int, seconds: float) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * 220 * np.arange(round(rate * seconds)) / rate)).astype(np.float32)


def test_a_codec_of_another_rate_is_given_its_own(tmp_path: Path) -> None:
    taken: list[np.ndarray] = []
    loaded = SimpleNamespace(encode=lambda clips: taken.extend(clips) or clips, decode=lambda codes: codes)
    codec = SimpleNamespace(sample_rate=16_000, load=lambda device: loaded)
    (tmp_path / "one.flac").write_bytes(encode_flac(Audio(wave_at(24_000, 0.5), 24_000)))
    soundfile.write(tmp_path / "none.wav", np.zeros(0, np.float32), 24_000)
    takes = [
        Take(Item(name, "A text.", "anna", "english"), tmp_path / f"{name}.{kind}", True)
        for name, kind in (("one", "flac"), ("none", "wav"))
    ]
    (one,) = reconstruct_recordings(takes, codec, tmp_path / "out")  # type: ignore[arg-type]  # what the function uses of one
    assert [len(clip) for clip in taken] == [8_000] and one.item.key == "one"
    assert np.abs(read_clip(one.path)[2_000:10_000] - wave_at(24_000, 0.5)[2_000:10_000]).max() < 0.01


def test_a_recording_that_the_codec_refuses_is_named(tmp_path: Path) -> None:
    def refuse(clips: list[np.ndarray]) -> None:
        raise CodecError("codes of shape (1, 2), expected (1, 16)")

    codec = SimpleNamespace(sample_rate=24_000, load=lambda device: SimpleNamespace(encode=refuse, decode=list))
    (tmp_path / "one.flac").write_bytes(encode_flac(Audio(wave_at(24_000, 0.5), 24_000)))
    take = Take(Item("one", "A text.", "anna", "english"), tmp_path / "one.flac", True)
    with pytest.raises(UserError, match=r"one.flac cannot be encoded \(codes of shape .*\); remove its row, or --codec"):
        reconstruct_recordings([take], codec, tmp_path / "out")  # type: ignore[arg-type]  # what the function uses of one
