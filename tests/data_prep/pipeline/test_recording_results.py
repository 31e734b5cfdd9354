"""Results of the stages of one recording."""

from __future__ import annotations

from overtone.data_prep.pipeline.recording_results import refuse_recording


def test_a_refused_recording_accounts_for_its_samples(take) -> None:
    recording = refuse_recording(take, "silent", "nothing in it", 36_000)
    assert (recording.total, recording.regions, recording.detail) == (36_000, ((0, 36_000),), "nothing in it")
