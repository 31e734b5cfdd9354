"""Every sample of the input is counted exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.dataset.duration_accounting import (
    RecordingDurations,
    compute_all_durations,
    compute_durations,
    format_clock,
    format_summary,
    make_summary,
)
from overtone.data_prep.manifest import ManifestRow, Reject
from overtone.data_prep.pipeline.recording_results import PreparedRecording
from overtone.data_prep.pipeline.user_notices import Notice
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.segmentation.subtitle_repair import TimingRepair, TimingSegment
from overtone.data_prep.segmentation.vad import Region

SECOND = MASTER_RATE
SPEECH = [Region(1 * SECOND, 4 * SECOND), Region(6 * SECOND, 8 * SECOND)]


def test_kept_rejected_and_silent_seconds_add_up_to_the_whole() -> None:
    one = compute_durations("a.wav", "me", 10 * SECOND + 7, SPEECH, [Region(SECOND - 5, 4 * SECOND + 5)], [Region(6 * SECOND, 8 * SECOND)])
    assert (one.kept, one.rejected, one.non_speech) == (3 * SECOND + 10, 2 * SECOND, 5 * SECOND - 3)
    assert one.kept + one.rejected + one.non_speech == one.total
    assert one.clips == 1


@pytest.mark.parametrize(
    ("kept", "rejected", "complaint"),
    [
        ([SPEECH[0]], [], "speech at 6.00 s is in no clip"),
        ([SPEECH[0], Region(6 * SECOND, 8 * SECOND - 1)], [], "speech at 6.00 s is in no clip"),
        ([SPEECH[0], Region(6 * SECOND, 7 * SECOND)], [Region(7 * SECOND, 7 * SECOND + 9)], "speech at 6.00 s is in no clip"),
        ([SPEECH[0]], [Region(4 * SECOND - 1, 8 * SECOND)], "overlaps"),
        ([SPEECH[0]], [Region(6 * SECOND, 10 * SECOND + 1)], "exceeds the recording"),
    ],
)
def test_lost_or_doubled_speech_raises(kept, rejected, complaint) -> None:
    with pytest.raises(RuntimeError, match=complaint):
        compute_durations("a.wav", "me", 10 * SECOND, SPEECH, kept, rejected)


def entry(**changes: int) -> RecordingDurations:
    values = {"total": 10 * SECOND, "kept": 4 * SECOND, "rejected": 3 * SECOND, "non_speech": 3 * SECOND} | changes
    return RecordingDurations(source="a.wav", speaker="me", clips=1, **values)


ROWS = [ManifestRow(id="1", audio="1.flac", text="a", speaker="me", language="english", duration=4.0, split="train")]
REJECTS = [
    Reject(source="a.wav", start=0, end=2, stage="clip", reasons=["noisy", "clipped"]),
    Reject(source="a.wav", start=2, end=3, stage="clip", reasons=["noisy"]),
]


ABOUT_TWO = Notice(text="their texts are short", recordings=("a.wav", "b.wav"))
NO_VALIDATION = "no validation clips: all clips share a text or a sound, or there is only one; give other recordings for validation"


def test_more_speech_rejected_than_kept_is_a_notice() -> None:
    (notice,) = make_summary([entry(kept=2 * SECOND, non_speech=5 * SECOND)], ROWS, REJECTS, {}, []).notices
    assert notice.text == "more speech was rejected than kept; main reasons: noisy, clipped; see rejects.jsonl"


def test_the_durations_of_a_recording_have_its_notices_and_how_its_texts_were_verified() -> None:
    notices = [ABOUT_TWO, Notice(text="damaged", recordings=("a.wav",)), Notice(text="of all"), ABOUT_TWO]
    source = RecordingSource(Path("a.wav"), "a.wav", "", "me")
    (one,) = compute_all_durations([PreparedRecording(source, SECOND)], [], [], notices, {"a.wav": "words not checked"})
    assert (one.warning, one.texts) == ("their texts are short; damaged", "words not checked")


def test_the_summary_counts_reasons_and_seconds() -> None:
    summary = make_summary(
        [entry()], ROWS, REJECTS, {"val_share": 0.05}, [ABOUT_TWO, Notice(text="half of it is missing", recordings=("a.wav",))]
    )
    assert (summary.input_seconds, summary.kept_seconds, summary.rejected_seconds, summary.non_speech_seconds) == (10, 4, 3, 3)
    assert summary.rejected_by_reason == {"clipped": 1, "noisy": 2}
    assert summary.rejected_seconds_by_reason == {"clipped": 2, "noisy": 3}
    assert [notice.text for notice in summary.notices] == ["their texts are short", NO_VALIDATION], "one recording's is with its durations"
    assert (summary.train, summary.val, summary.speakers, summary.languages) == (1, 0, {"me": 4}, {"english": 4})


def test_a_sum_that_is_off_by_one_sample_is_refused() -> None:
    with pytest.raises(RuntimeError, match="are not 240000 samples"):
        make_summary([entry(kept=4 * SECOND - 1)], ROWS, REJECTS, {}, [])


def test_the_table_shows_the_seconds_per_reason() -> None:
    lines = format_summary(make_summary([entry()], ROWS, REJECTS, {}, [])).splitlines()
    assert [line.split()[0] for line in lines] == ["input", "kept", "rejected", "noisy", "clipped", "no", "speaker"]
    assert "0:00:04.0" in lines[1]
    assert "40.0%" in lines[1]
    assert format_summary(make_summary([], [], [], {}, []))


def test_repaired_times_are_in_the_account() -> None:
    segment = TimingSegment(start=1.0, stop=9.0, cues=30, offset=0.5, drift_ppm=1000.0)
    source = RecordingSource(Path("a.wav"), "a.wav", "", "me")
    repaired = PreparedRecording(source, SECOND, repair=TimingRepair(segments=[segment], left_out=3))
    (one,) = compute_all_durations([repaired], [], [], [], {})
    assert (one.timing, one.cues_left_out) == ([segment], 3)


def test_the_channels_of_recordings_with_several_are_counted() -> None:
    accounts = [entry().model_copy(update={"channels": name}) for name in ("mono", "left", "mix", "left", "")]
    summary = make_summary(accounts, ROWS, REJECTS, {}, [])
    assert summary.channels == {"left": 2, "mix": 1}
    assert "channels of recordings with several: 2 left, 1 mix" in format_summary(summary)


def test_the_clock_never_shows_sixty_seconds() -> None:
    assert [format_clock(seconds) for seconds in (0, 59.94, 59.97, 3599.99, 90_061.25)] == [
        *("0:00:00.0", "0:00:59.9", "0:01:00.0"),
        *("1:00:00.0", "25:01:01.2"),
    ]


STRETCHES = st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**7), st.booleans()), max_size=30)


@given(STRETCHES, st.integers(0, 10**7))
def test_an_account_from_manifest_seconds_is_exact_to_the_sample(stretches, tail) -> None:
    """`stretches`: silence, clip, whether it is kept."""
    position, rows, rejects, speech, kept = 0, [], [], [], 0
    for silence, length, good in stretches:
        start, stop = position + silence, position + silence + length
        times = {"source": "a.wav", "start": round(start / MASTER_RATE, 6), "end": round(stop / MASTER_RATE, 6)}
        if good:
            rows.append(ManifestRow(audio="a.flac", text="a", **times))
            kept += length
        else:
            rejects.append(Reject(stage="clip", reasons=["noisy"], **times))
        speech.append(Region(start, stop))
        position = stop
    recording = PreparedRecording(RecordingSource(Path("a.wav"), "a.wav", "aa", "me"), position + tail, tuple(speech))
    (one,) = compute_all_durations([recording], rows, rejects, [], {})
    assert one.kept == kept
    assert one.kept + one.rejected + one.non_speech == one.total == position + tail
