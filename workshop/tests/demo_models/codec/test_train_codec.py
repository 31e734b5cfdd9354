"""Codec training from start to end on a few sentences, loaded by the stock package."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio_codecs.qwen3_tts_codec import encode_clips, find_codec, load_codec
from overtone.finetune.errors import UserError
from overtone.finetune.storage import demo_models
from workshop.demo_models.codec import measure_codec, measure_losses, pack_codec, train_codec


@pytest.fixture
def corpus(tmp_path: Path, sound: Callable[..., np.ndarray]) -> Path:
    """Two voices, six sentences to train on and one held out of each."""
    folder, rows = tmp_path / "corpus", []
    folder.mkdir()
    for index in range(14):
        voice, split = "ab"[index % 2], "held_out" if index >= 12 else "train"
        soundfile.write(folder / f"{index}.flac", sound((110, 190)[index % 2], 2.0, index), 24000)
        rows.append({"audio": f"{index}.flac", "text": f"sentence {index}", "speaker": voice, "split": split})
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_first_clips_of_each_voice_are_loaded(corpus: Path) -> None:
    assert [clip.text for clip in train_codec.load_clips(corpus, "train", 2)] == [f"sentence {index}" for index in range(4)]
    assert [clip.voice for clip in train_codec.load_clips(corpus, "held_out", 5)] == ["a", "b"]


def test_zero_steps_and_a_missing_corpus_are_refused(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(UserError, match="--wave-steps 0"):
        train_codec.main([str(tmp_path), "--wave-steps", "0"])
    with pytest.raises(UserError, match="corpus.jsonl is missing"):
        train_codec.main([str(tmp_path), "--corpus", str(tmp_path / "nowhere")])


@pytest.mark.slow
def test_training_gives_a_codec_whose_codes_do_not_change_with_the_decoder(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound: Callable[..., np.ndarray]
) -> None:
    for name, steps in (("ENCODER_STEPS", 20), ("FRONT_STEPS", 10), ("CODEBOOK_CLIPS", 4)):
        monkeypatch.setattr(train_codec, name, steps)
    folder, corpus = tmp_path / "run", str(corpus)
    assert train_codec.main([str(folder), "--corpus", corpus, "--wave-steps", "2"]) == 0
    assert pack_codec.main([str(folder), "--corpus", corpus, "--sentences", "1", "--to", str(tmp_path / "models")]) == 0
    monkeypatch.setattr(demo_models, "IN_CLONE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    coder, final = (load_codec(find_codec(name), "cpu") for name in (str(folder / "coder"), "codec-demo"))
    clip = sound(140, 1.5, 3)
    codes = encode_clips(final, [clip])[0]
    assert np.array_equal(codes, encode_clips(coder, [clip])[0])
    measure_losses.restore_codebooks(final, train_codec.load_clips(Path(corpus), "train", 4))  # raises unless they are of these clips
    assert measure_codec.reconstruct(final, clip).shape == (len(codes) * 1920,)
    assert "decoder after 2 steps" in (demo_models.folder_of("codec-demo") / "README.md").read_text()
