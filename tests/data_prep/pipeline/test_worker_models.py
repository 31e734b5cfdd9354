"""Models and decoder are loaded once on first use and closed at the end."""

from __future__ import annotations

import psutil
import soundfile

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE
from overtone.data_prep.pipeline.lazy_audio import LazyAudio
from overtone.data_prep.pipeline.worker_models import Models


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_each_model_is_loaded_once_when_it_is_needed(random_whisper, tmp_path) -> None:
    with Models(str(random_whisper), "cpu", tmp_path) as models:
        assert models.loads == {}
        assert models.vad is models.vad
        assert models.loads == {"vad": 1}
        assert models.whisper is models.whisper
        assert models.loads == {"vad": 1, "whisper": 1}


def test_closing_the_models_stops_the_decoder(tmp_path, one_sentence) -> None:
    before = children()
    soundfile.write(tmp_path / "take.wav", one_sentence.samples, MASTER_RATE)
    with Models(None, "cpu", tmp_path / "sound") as models:
        assert children() == before
        sound = LazyAudio(tmp_path / "take.wav", models)
        assert (sound.master.rate, sound.speech_audio.rate) == (MASTER_RATE, SPEECH_RATE)
        assert len(sound.master.samples) == sound.track.length == len(one_sentence.samples)
        assert sound.master is sound.master
        assert len(children() - before) == 1
    assert children() == before
