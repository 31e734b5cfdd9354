"""How the texts of a recording were verified, in words."""

from __future__ import annotations

from dataclasses import replace

from overtone.data_prep.pipeline.text_verification import TextChecks, describe_texts
from overtone.data_prep.pipeline.transcript_plausibility import TranscriptDoubts
from tests.data_prep.pipeline.test_clip_selection import clip, recording
from tests.data_prep.pipeline.test_transcript_plausibility import RIGHT, timing

UNCHECKED = TranscriptDoubts(unchecked_lengths=frozenset({"a.wav"}), languages={"a.wav": "language fits"})


def test_models_that_checked_the_words_are_named_with_the_clips_that_they_left_out() -> None:
    aligned, unknown = clip(0, alignment_score=0.4), clip(1)
    found = describe_texts(recording(aligned, unknown), TextChecks(aligner="pocketsphinx"), UNCHECKED)
    assert found == "transcript; aligned with the sound by pocketsphinx (not 1 clip of 2); language fits"
    compared = describe_texts(recording(clip(0, check_wer=0.1)), TextChecks(check="small"), UNCHECKED)
    assert compared == "transcript; compared with what small transcribes; language fits"


def test_without_a_model_only_times_and_lengths_are_checked() -> None:
    timed = replace(recording(clip()), timings=(timing(0, 6, RIGHT),))
    assert (
        describe_texts(timed, TextChecks(), TranscriptDoubts())
        == "transcript; times and lengths checked against the speech; words not checked"
    )
    assert describe_texts(recording(clip()), TextChecks(), UNCHECKED) == "transcript; language fits; words not checked"
    assert describe_texts(recording(clip()), TextChecks(whisper="small"), UNCHECKED) == "transcribed by small; language fits"
    assert describe_texts(replace(timed, refused="nan"), TextChecks(), TranscriptDoubts()) == ""
