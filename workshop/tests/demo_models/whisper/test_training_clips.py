"""Whisper's training clips: the originals, then the codec reconstruction of every second one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, read_audio
from workshop.demo_models.codec.decoder_training import DELAY
from workshop.demo_models.corpus import make_new_voice
from workshop.demo_models.whisper import training_clips
from workshop.demo_models.whisper.training_clips import load_clips

KNOWN = make_new_voice.FOLDER / "known" / "slt"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Three clips of a voice that the codec knows, of unequal lengths, the last frame partial."""
    voice = read_audio(sorted(KNOWN.iterdir())[0], 24_000).samples
    for number in range(3):
        soundfile.write(tmp_path / f"{number}.flac", voice[: 30_000 + 1_000 * number], 24_000)
    return tmp_path


def rows(count: int) -> list[dict[str, Any]]:
    return [{"audio": f"{number}.flac"} for number in range(count)]


def test_clips_are_followed_by_reconstructions_of_every_second_one(corpus: Path) -> None:
    found = load_clips(corpus, rows(3))
    assert [one.row["audio"] for one in found] == ["0.flac", "1.flac", "2.flac", "0.flac", "2.flac"]
    assert [len(one.pcm) for one in found] == pytest.approx([20_000, 20_667, 21_333, 20_000, 21_333], abs=1)
    for original, again in ((found[0].pcm, found[3].pcm), (found[2].pcm, found[4].pcm)):
        assert np.abs(original.astype(float) - again).mean() > 0, "not the clip itself"
        late = DELAY * SPEECH_RATE // MASTER_RATE
        assert _correlate(original[:-late], again[late:]) > 0.8 > _correlate(original, np.random.default_rng(0).permutation(original))


def _correlate(one: np.ndarray, other: np.ndarray) -> float:
    """Correlation of the log energies of 20 ms in eight bands."""
    energies = []
    for sound in (one, other):
        spectra = np.abs(np.fft.rfft(sound[: len(sound) // 320 * 320].reshape(-1, 320)))[:, :160]
        energies.append(np.log(spectra.reshape(len(spectra), 8, 20).mean(-1) + 10).ravel())
    return float(np.corrcoef(energies)[0, 1])


def test_clips_are_cached_by_a_digest_of_their_inputs(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_clips(corpus, rows(1))
    monkeypatch.setattr(training_clips, "load_codec", None)
    for one, other in zip(first, load_clips(corpus, rows(1)), strict=True):
        np.testing.assert_array_equal(one.pcm, other.pcm)
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        load_clips(corpus, rows(2))
    monkeypatch.setattr(training_clips, "compute_codec_digest", lambda codec: "another")
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        load_clips(corpus, rows(1))
