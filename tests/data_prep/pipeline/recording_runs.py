"""One recording through its stages, for tests."""

from __future__ import annotations

from pathlib import Path

import soundfile

from overtone.data_prep.audio.waveform import Audio
from overtone.data_prep.pipeline.one_recording import prepare_recording
from overtone.data_prep.pipeline.recording_run import RecordingRun
from overtone.data_prep.pipeline.stage_cache import Stages
from overtone.data_prep.pipeline.worker_models import Models
from overtone.data_prep.recordings.recording_files import RecordingSource, find_recordings

TEXT = "The night train to the north leaves from platform seven."


def write_take(folder: Path, sound: Audio) -> RecordingSource:
    """One sentence as a recording in `folder`/in."""
    (folder / "in").mkdir()
    soundfile.write(folder / "in" / "take.wav", sound.samples, sound.rate)
    return find_recordings(folder / "in", "me", folder / "out")[0]


def run(source, transcript, job, whisper=None):
    stages = Stages(job.out / "stages")
    with Models(whisper, "cpu", stages.folder, job.encoder) as models:
        return prepare_recording(RecordingRun(source, transcript, job, stages, models)), stages, models
