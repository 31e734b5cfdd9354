"""Decoding and speech detection of one recording."""

from __future__ import annotations

import numpy as np
import soundfile

from overtone.data_prep.recordings.user_transcripts import UserTranscript
from tests.data_prep.pipeline.recording_runs import TEXT, run


def test_an_unreadable_recording_is_rejected_with_the_reason(take, job) -> None:
    take.path.write_bytes(b"garbage")
    recording, _, _ = run(take, UserTranscript(text=TEXT), job)
    assert (recording.refused, recording.clips, recording.total) == ("unreadable", (), 0)


def test_a_recording_without_speech_is_rejected(take, job) -> None:
    soundfile.write(take.path, np.random.default_rng(0).normal(0, 0.001, 48_000), 24_000)
    recording, _, _ = run(take, UserTranscript(text=TEXT), job)
    assert (recording.refused, recording.total, recording.regions) == ("no_speech", 48_000, ())


def test_a_file_damaged_after_speech_detection_is_rejected_and_the_rejection_is_not_stored(take, job) -> None:
    whole = take.path.read_bytes()
    run(take, None, job)
    take.path.write_bytes(b"garbage")
    recording, _, _ = run(take, UserTranscript(text=TEXT), job)
    assert recording.refused == "unreadable"
    take.path.write_bytes(whole)
    assert len(run(take, UserTranscript(text=TEXT), job)[0].clips) == 1
