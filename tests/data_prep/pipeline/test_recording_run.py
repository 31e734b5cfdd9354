"""What the stages of a recording read from its run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overtone.data_prep.pipeline.recording_run import RecordingRun
from overtone.data_prep.pipeline.stage_cache import Stages
from overtone.data_prep.pipeline.worker_models import Models
from overtone.data_prep.recordings.timed_transcript import TimedUtterance
from overtone.data_prep.recordings.user_transcripts import UserTranscript


@pytest.fixture
def begin(take, job):
    """Make the run of a transcript; `language`: that of the command line."""

    def make(transcript: UserTranscript | None, language: str | None = None) -> RecordingRun:
        folder = job.out / "stages"
        return RecordingRun(take, transcript, replace(job, language=language), Stages(folder), Models(None, "cpu", folder))

    return make


def test_the_language_of_the_option_comes_before_that_of_the_table(begin) -> None:
    german = UserTranscript(text="Guten Tag.", language="de-AT")
    assert begin(german, "english").language == "english" and begin(german).language == "german"
    assert begin(UserTranscript(text="Good day.")).language is None and begin(None).language is None


def test_a_text_without_times_is_one_text(begin) -> None:
    timed = UserTranscript(utterances=(TimedUtterance(start=0.0, end=1.0, text="Good day."),))
    assert begin(UserTranscript(text="Good day.")).has_one_text
    assert not begin(timed).has_one_text and not begin(None).has_one_text


def test_the_samples_and_the_key_depend_on_the_file(begin, take, job) -> None:
    run = begin(None)
    assert run.samples == job.out / "stages" / "samples" / take.digest
    assert replace(run, source=replace(take, digest="f" * 64)).speech_key != run.speech_key
