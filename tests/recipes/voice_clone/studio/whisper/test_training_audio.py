"""What Whisper is trained on: the clips, then every second one as the codec gives it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from data_prep.audio.waveform import read_audio
from recipes.voice_clone.studio.corpus import make_new_voice
from recipes.voice_clone.studio.whisper import training_audio
from recipes.voice_clone.studio.whisper.training_audio import sounds

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


def test_clips_come_first_then_reconstructions_of_every_second(corpus: Path) -> None:
    heard = sounds(corpus, rows(3))
    assert [one.row["audio"] for one in heard] == ["0.flac", "1.flac", "2.flac", "0.flac", "2.flac"]
    assert [len(one.pcm) for one in heard] == pytest.approx([20_000, 20_667, 21_333, 20_000, 21_333], abs=1)
    for original, again in ((heard[0].pcm, heard[3].pcm), (heard[2].pcm, heard[4].pcm)):
        assert np.abs(original.astype(float) - again).mean() > 0, "not the clip itself"
        assert _alike(original, again) > 0.8 > _alike(original, np.random.default_rng(0).permutation(original))


def _alike(one: np.ndarray, other: np.ndarray) -> float:
    """Correlation of what a listener follows: log energies of 20 ms in eight bands."""
    energies = []
    for sound in (one, other):
        spectra = np.abs(np.fft.rfft(sound[: len(sound) // 320 * 320].reshape(-1, 320)))[:, :160]
        energies.append(np.log(spectra.reshape(len(spectra), 8, 20).mean(-1) + 10).ravel())
    return float(np.corrcoef(energies)[0, 1])


def test_they_are_kept_by_what_they_were_made_of(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sounds(corpus, rows(1))
    monkeypatch.setattr(training_audio, "load_codec", None)
    for one, other in zip(first, sounds(corpus, rows(1)), strict=True):
        np.testing.assert_array_equal(one.pcm, other.pcm)
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        sounds(corpus, rows(2))
    monkeypatch.setattr(training_audio, "compute_codec_digest", lambda codec: "another")
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        sounds(corpus, rows(1))
