"""A recording is probed and decoded on first use. test_worker_models.py tests decoding, test_long_recording.py parts of a recording."""

from __future__ import annotations

import pytest

from overtone.data_prep.audio.stream_reader import AudioError
from overtone.data_prep.pipeline.lazy_audio import LazyAudio
from overtone.data_prep.pipeline.worker_models import Models


def test_an_unreadable_file_raises_on_first_use(tmp_path) -> None:
    with Models(None, "cpu", tmp_path) as models:
        sound = LazyAudio(tmp_path / "absent.wav", models)
        with pytest.raises(AudioError, match="unreadable"):
            _ = sound.track
