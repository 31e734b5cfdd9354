"""Windows of speech and what is stored of their vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.speakers.windowed_speaker_vectors import StoredVoiceWindows, VoiceWindows, embed_windows, list_windows, read_windows
from overtone.finetune.errors import UserError


@dataclass(frozen=True)
class LevelEncoder:
    """A stand-in for an encoder: the vector says how loud the window is, and how long."""

    sample_rate: int = SPEECH_RATE
    shortest_seconds: float = 0.6
    dimensions: int = 2
    scale: float = 1.0

    def embed(self, clip: np.ndarray) -> np.ndarray:
        return np.array([clip.mean(), len(clip) / self.sample_rate], np.float32) * np.float32(self.scale)


def region(start: float, stop: float) -> Region:
    return Region(round(start * MASTER_RATE), round(stop * MASTER_RATE))


@pytest.mark.parametrize(("seconds", "starts"), [(0.7, [0]), (1.6, [0]), (1.7, [0, 0.1]), (3.1, [0, 0.75, 1.5])])
def test_windows_cover_a_region_to_its_end(seconds: float, starts: list[float]) -> None:
    windows = list_windows(region(5, 5 + seconds))
    assert [round(start / MASTER_RATE - 5, 2) for start, _ in windows] == starts
    assert windows[-1][1] == region(5, 5 + seconds).stop


@pytest.mark.parametrize("rate", [SPEECH_RATE, MASTER_RATE, 8000])
def test_vectors_are_of_the_samples_of_their_window_at_the_encoders_rate(rate: int) -> None:
    levels = np.repeat([0.0, 0.2, 0.8, 0.0], MASTER_RATE * 2).astype(np.float32)
    master, speech = Audio(levels, MASTER_RATE), Audio(np.repeat([0.0, 0.2, 0.8, 0.0], SPEECH_RATE * 2).astype(np.float32), SPEECH_RATE)
    stored = embed_windows(LevelEncoder(rate), master, speech, [region(2.1, 3.1), region(3.2, 3.5), region(4.5, 5.5)])
    windows = read_windows(StoredVoiceWindows.model_validate_json(stored.model_dump_json()))
    assert windows.spans.tolist() == [list(region(2.1, 3.1)), list(region(4.5, 5.5))], "0.3 s say nothing about a voice"
    np.testing.assert_allclose(np.linalg.norm(windows.vectors, axis=1), 1, atol=1e-3)
    np.testing.assert_allclose(windows.vectors[:, 0] / windows.vectors[:, 1], [0.2, 0.8], atol=0.01)
    assert windows.find_inside(*region(0, 4)) == slice(0, 1)


def test_the_vector_of_a_clip_is_the_mean_of_its_windows_weighted_by_their_lengths() -> None:
    spans = np.array([region(0, 1.6), region(0.75, 2.35), region(3, 3.8)], np.int64)
    windows = VoiceWindows(spans, np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32))
    np.testing.assert_allclose(windows.average(*region(0, 4)), [(1.6 + 1.6 * 0.6) / 4, (1.6 * 0.8 + 0.8) / 4], atol=1e-6)
    np.testing.assert_allclose(windows.average(*region(1, 2.6)), [0.6, 0.8], atol=1e-6)
    assert windows.average(*region(4, 9)) is None
    assert VoiceWindows().average(0, 100) is None


def test_broken_weights_are_reported() -> None:
    with pytest.raises(UserError, match="NaN or Inf"):
        embed_windows(
            LevelEncoder(scale=np.nan), Audio(np.ones(48000, np.float32), 24000), Audio(np.ones(32000, np.float32), 16000), [region(0, 2)]
        )
