"""The times of a user's transcript."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overtone.data_prep.audio.waveform import MASTER_RATE, Track
from overtone.data_prep.pipeline.recording_results import DetectedSpeech
from overtone.data_prep.pipeline.recording_run import RecordingRun
from overtone.data_prep.pipeline.stage_cache import Stages
from overtone.data_prep.pipeline.transcript_timing import time_transcript
from overtone.data_prep.pipeline.worker_models import Models
from overtone.data_prep.recordings.timed_transcript import TimedUtterance
from overtone.data_prep.recordings.user_transcripts import UserTranscript
from overtone.data_prep.transcription.whisper_engine import describe_settings
from tests.data_prep.pipeline.recording_runs import run, write_take
from tests.data_prep.segmentation.test_subtitle_repair import edit, make_regions, talk


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


def time_cues(cues, regions, take, job):
    """`time_transcript` for cues (start, stop) beside speech that is already detected."""
    utterances = tuple(TimedUtterance(start=start, end=stop, text=str(number)) for number, (start, stop) in enumerate(cues))
    frames = regions[-1].stop + MASTER_RATE
    speech = DetectedSpeech(track=Track(rate=MASTER_RATE, frames=frames, weights=(1.0,), offset=0.0), regions=regions)
    stages = Stages(job.out / "stages")
    with Models(None, "cpu", stages.folder) as models:
        run_of_take = RecordingRun(take, UserTranscript(utterances=utterances), job, stages, models)
        return time_transcript(run_of_take, run_of_take.transcript, speech, None), stages


def test_a_jump_is_repaired_said_and_stored(take, job) -> None:
    spoken = talk(0)
    sound, places = edit(spoken, [(0.5 * spoken[-1][1], 20)])
    found, stages = time_cues(spoken, make_regions(sound), take, job)
    assert [segment.offset for segment in found.repair.segments] == pytest.approx([0, -20], abs=0.1) and found.delay == 0
    assert all(timing.is_trusted for timing in found.timings) and len(found.timings) >= 2
    assert all(abs(places[int(unit.text)] - unit.start / MASTER_RATE) < 0.2 for unit in found.units)
    assert found.note.startswith("times of the transcript repaired by the pauses of the speech: from ")
    again, stages = time_cues(spoken, make_regions(sound), take, job)
    assert again == found and not stages.computed and stages.reused["repaired_times"] == 1


def test_right_late_and_unrelated_times_are_not_repaired(take, job) -> None:
    spoken = talk(3)
    right, _ = time_cues(spoken, make_regions(spoken), take, job)
    assert not right.repair.segments and len(right.units) == len(spoken) and right.note == ""
    late, _ = time_cues([(start + 3, stop + 3) for start, stop in spoken], make_regions(spoken), take, job)
    assert late.delay == pytest.approx(3.0, abs=0.1) and not late.repair.segments
    other, _ = time_cues(spoken, make_regions(talk(77)), take, job)
    assert not other.repair.segments and not all(timing.is_trusted for timing in other.timings)
