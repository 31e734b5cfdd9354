"""What Whisper is trained on: the clips, then every second one as the codec gives it back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from recipes.voice_clone.studio import make_new_voice, whisper_sounds
from recipes.voice_clone.studio.whisper_sounds import RATE, sounds


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Clips of a real voice, of unequal lengths, the last frame partial."""
    folder = tmp_path_factory.mktemp("clips")
    voice, rate = soundfile.read(sorted((make_new_voice.FOLDER / "known" / "slt").iterdir())[0], dtype="float32")
    paths = [folder / f"{number}.flac" for number in range(3)]
    for number, path in enumerate(paths):
        soundfile.write(path, soxr.resample(voice, rate, 24_000)[: 30_000 + 1_000 * number], 24_000)
    return paths


def test_clips_come_first_then_reconstructions_of_every_second(clips: list[Path], tmp_path: Path) -> None:
    heard = sounds(clips, tmp_path / "kept.safetensors")
    lengths = [round((30_000 + 1_000 * number) * RATE / 24_000) for number in (0, 1, 2, 0, 2)]
    assert [len(one) for one in heard] == pytest.approx(lengths, abs=1)
    for original, again in ((heard[0], heard[3]), (heard[2], heard[4])):
        assert np.abs(original.astype(float) - again).mean() > 0, "not the clip itself"
        assert _alike(original, again) > 0.8 > _alike(original, np.random.default_rng(0).permutation(original))


def _alike(one: np.ndarray, other: np.ndarray) -> float:
    """Correlation of what a listener follows: log energies of 20 ms in eight bands."""
    energies = []
    for sound in (one, other):
        spectra = np.abs(np.fft.rfft(sound[: len(sound) // 320 * 320].reshape(-1, 320)))[:, :160]
        energies.append(np.log(spectra.reshape(len(spectra), 8, 20).mean(-1) + 10).ravel())
    return float(np.corrcoef(energies)[0, 1])


def test_they_are_kept(clips: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sounds(clips[:1], tmp_path / "kept.safetensors")
    monkeypatch.setattr(whisper_sounds, "load_codec", None)
    for one, other in zip(first, sounds(clips[:1], tmp_path / "kept.safetensors"), strict=True):
        np.testing.assert_array_equal(one, other)
