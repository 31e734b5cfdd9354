"""Progress lines: hours, speed, time left and rejection reasons."""

from __future__ import annotations

import io
import itertools
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from overtone.data_prep.audio.waveform import MASTER_RATE, Track
from overtone.data_prep.clips.extraction import RecordingLevels
from overtone.data_prep.pipeline import progress as progress_module
from overtone.data_prep.pipeline.progress import Pace, RecordingProgress, describe_result, format_progress
from overtone.data_prep.pipeline.recording_results import DetectedSpeech, DividedRecording, TimedText, refuse_recording
from overtone.data_prep.pipeline.worker_activity import Activity
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.segmentation.vad import Region
from tests.data_prep.pipeline.test_clip_selection import clip, recording

HOUR = 3600


def test_progress_shows_hours_speed_time_left_and_reasons() -> None:
    line = format_progress(done=2 * HOUR, total=4 * HOUR, speed=40.0, reasons=Counter(noisy=3, no_text=2, a=1, b=1, c=1))
    assert line == "2:00:00 of about 4:00:00, 40.0× real time, 0:03:00 left · rejected for: noisy 3, no_text 2, a 1, b 1"
    assert format_progress(0.0, HOUR, None, Counter()) == "0:00:00 of about 1:00:00", "the speed is not known yet"


def test_the_time_in_which_models_are_loaded_does_not_count_as_work() -> None:
    """The first estimate for a file of clips was six hours: its first batch had waited for the codec."""
    times = iter((60.0, 60.0, 61.0, 63.0))
    pace = Pace(lambda: next(times))
    assert [pace.compute_speed(done) for done in (20.0, 40.0, 80.0)] == [None, 20.0, 20.0]


def test_the_result_of_a_recording_is_described() -> None:
    assert describe_result(recording(clip(0), clip(1))) == "2 clips"
    assert (
        describe_result(refuse_recording(RecordingSource(Path("b.wav"), "b.wav", "bb", "me"), "nan", "at 0.1 s", 0))
        == "rejected, nan: at 0.1 s"
    )


def test_without_a_terminal_each_recording_has_a_line_and_estimates_are_corrected(capsys) -> None:
    with RecordingProgress(2, estimated_seconds=1200.0) as progress:  # each was taken for 600 s and lasts as long
        progress.update(recording(clip(0)), 600.0, ["noisy"])
        progress.update(
            refuse_recording(RecordingSource(Path("b.wav"), "b.wav", "bb", "me"), "silent", "all of it", 1200 * MASTER_RATE), 600.0, []
        )
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("[1/2] a.wav: 1 clip · 0:10:00 of about 0:20:00")
    assert first.endswith("· rejected for: noisy 1")
    assert second.startswith("[2/2] b.wav: rejected, silent: all of it · 0:30:00 of about 0:30:00, ")
    assert "0:00:00 left" in second


def divided(*seconds: int) -> DividedRecording:
    """A recording of parts of so many seconds."""
    edges = [0, *itertools.accumulate(second * MASTER_RATE for second in seconds)]
    speech = DetectedSpeech(track=Track(rate=MASTER_RATE, frames=edges[-1], weights=(1.0,), offset=0.0), regions=[])
    parts = [Region(start, stop) for start, stop in itertools.pairwise(edges)]
    return DividedRecording(speech, RecordingLevels(noise=None, bandwidth_hz=0.0, gain=1.0), parts, TimedText())


def test_the_parts_of_a_recording_count_once(capsys) -> None:
    """The recording is taken for 600 s and lasts 1200, of which a part of 300 s is a quarter."""
    long, whole = divided(300, 900), recording(clip(0))
    with RecordingProgress(2, estimated_seconds=1200.0) as progress:
        progress.update_part("a.wav", 600.0, long, 0, 7)
        progress.update_part("a.wav", 600.0, long, 1, 1)
        progress.update(replace(whole, total=1200 * MASTER_RATE), 600.0, [])
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "[0/2] a.wav: part 1 of 2, 7 clips · 0:05:00 of about 0:40:00"
    assert second.startswith("[0/2] a.wav: part 2 of 2, 1 clip · 0:20:00 of about 0:40:00, ")
    assert third.startswith("[1/2] a.wav: 1 clip · 0:20:00 of about 0:40:00, ")


def test_a_step_that_takes_seconds_has_a_line_now_and_then(capsys, monkeypatch) -> None:
    with RecordingProgress(1, estimated_seconds=600.0) as progress:
        for seconds in (0.0, 0.5, 1.5, 5.0, 11.4, 12.0):
            monkeypatch.setattr(progress_module.time, "monotonic", lambda now=seconds: now)
            progress.show_activity("a.wav", Activity("decoding", 400 * seconds))
    assert capsys.readouterr().out.splitlines() == [
        "[0/1] a.wav: decoding, 0:10:00, 400× real time",
        "[0/1] a.wav: decoding, 1:20:00, 400× real time",
    ]


def test_a_line_break_in_a_name_does_not_break_the_log(capsys) -> None:
    with RecordingProgress(1, estimated_seconds=600.0) as progress:
        progress.update(refuse_recording(RecordingSource(Path("a\nb.wav"), "a\nb.wav", "bb", "me"), "silent", "all of it", 0), 600.0, [])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("[1/1] a b.wav: rejected, silent: all of it · ")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_is_updated_and_only_rejections_are_printed(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stdout", Terminal())
    with RecordingProgress(3, estimated_seconds=1800.0) as progress:
        progress.update(recording(clip(0)), 600.0, ["noisy"])
        progress.update(refuse_recording(RecordingSource(Path("b.wav"), "b.wav", "bb", "me"), "silent", "all of it", 0), 600.0, [])
    shown = sys.stdout.getvalue()
    assert "b.wav: rejected, silent: all of it\n" in shown
    assert "a.wav" not in shown
    assert "2/3" in shown
    assert "0:10:00 of about" in shown
    assert "rejected for: noisy 1" in shown
