"""The times of a user's transcript."""

from __future__ import annotations

from dataclasses import replace

import pytest

from data_prep.recordings.timed_transcript import TimedUtterance
from data_prep.recordings.user_transcripts import UserTranscript
from data_prep.transcription.whisper_engine import describe_settings
from tests.data_prep.pipeline.recording_runs import run, write_take


@pytest.fixture(scope="module")
def timed(railway, said) -> UserTranscript:
    """The eight sentences of `railway`."""
    return UserTranscript(utterances=tuple(TimedUtterance(start=one["start"], end=one["end"], text=one["text"]) for one in said))


def test_a_cue_in_whose_time_nobody_speaks_is_left_out(railway, timed, job, tmp_path) -> None:
    source = write_take(tmp_path, railway)
    expected, _, _ = run(source, timed, job)
    unspoken = TimedUtterance(start=9.4, end=10.1, text="Nobody says this.")
    more = timed.model_copy(update={"utterances": (*timed.utterances[:2], unspoken, *timed.utterances[2:])})
    found, _, _ = run(source, more, job)
    assert found.clips == expected.clips and len(found.clips) >= 6
    assert expected.warning == "" and found.warning == '1 sentence not spoken, dropped: "Nobody says this."'
    assert [timing.is_trusted for timing in found.timings] == [True] and not found.has_unchecked_times
    checked, _, _ = run(source, more, replace(job, check_settings=describe_settings("whisper-demo-en", "english")), "whisper-demo-en")
    assert checked.timings == () and not checked.has_unchecked_times, "with a model, few cues decide nothing"
    assert any("Nobody" in clip.text for clip in checked.clips)


def test_few_cues_of_another_recording_are_not_trusted(railway, timed, job, tmp_path) -> None:
    moments = (0.9, 2.2, 7.0, 11.9, 13.4, 18.0, 22.3, 29.0)  # of somebody else's sentences
    wrong = [one.model_copy(update={"start": start, "end": start + 1.5}) for one, start in zip(timed.utterances, moments, strict=True)]
    unspoken = TimedUtterance(start=9.4, end=10.1, text="Nobody says this.")
    found, _, _ = run(write_take(tmp_path, railway), UserTranscript(utterances=(*wrong[:3], unspoken, *wrong[3:])), job)
    assert [timing.is_trusted for timing in found.timings] == [False]
    assert any("Nobody" in clip.text for clip in found.clips) and "left out" not in found.warning, "its times are not known to be right"
