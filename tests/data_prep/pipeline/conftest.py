"""A recording of one sentence and the settings of a run."""

from __future__ import annotations

import pytest

from overtone.data_prep.pipeline.recording_results import Job
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.segmentation.clip_segmentation import Lengths
from tests.data_prep.pipeline.recording_runs import write_take


@pytest.fixture
def take(tmp_path, one_sentence) -> RecordingSource:
    return write_take(tmp_path, one_sentence)


@pytest.fixture
def job(tmp_path) -> Job:
    return Job(tmp_path / "out", Lengths(), "english", None)
