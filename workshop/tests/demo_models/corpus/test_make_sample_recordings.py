"""The embedded sample matches its README and its transcripts."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.finetune.storage import demo_models
from workshop.demo_models.corpus import make_sample_recordings
from workshop.demo_models.corpus.make_sample_recordings import PAUSE_S, RECORDINGS, SampleRecording

SAMPLE = demo_models.data_folder() / "sample"
AUDIO = {".flac", ".mp3", ".ogg", ".wav"}

needs_flite = pytest.mark.skipif(shutil.which("flite") is None, reason="the flite command, which made the sample, is not installed")
every_recording = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.path)


def test_the_sample_has_exactly_the_listed_files_and_is_small() -> None:
    listed = {recording.path for recording in RECORDINGS}
    there = {str(path.relative_to(SAMPLE)) for path in SAMPLE.rglob("*") if path.suffix in AUDIO}
    assert there == listed and len(listed) == 4
    assert sum(path.stat().st_size for path in SAMPLE.rglob("*") if path.is_file()) <= 6_000_000
    assert len({recording.rate for recording in RECORDINGS}) == 4
    assert {recording.path.partition("/")[0] for recording in RECORDINGS} == {"slt", "rms"}


@every_recording
def test_a_recording_has_the_right_rate_channels_and_length(recording: SampleRecording) -> None:
    wave, rate = soundfile.read(SAMPLE / recording.path, always_2d=True)
    assert (rate, wave.shape[1]) == (recording.rate, recording.channels)
    assert 30 <= len(wave) / rate <= 45
    assert np.abs(wave).max() < 1.0


@every_recording
def test_the_transcript_has_the_sentences_in_order(recording: SampleRecording) -> None:
    transcript = _transcript(recording)
    assert [line["text"] for line in transcript] == list(recording.sentences)
    duration = soundfile.info(SAMPLE / recording.path).duration
    ends = [0.0, *(line["end"] for line in transcript)]
    starts = [*(line["start"] for line in transcript), duration]
    gaps = [start - end for start, end in zip(starts, ends, strict=True)]
    assert all(2.0 < line["end"] - line["start"] < 6.0 for line in transcript)
    assert all(PAUSE_S[0] - 1e-6 <= gap <= PAUSE_S[1] + 1e-6 for gap in gaps[1:-1])
    assert gaps[0] == pytest.approx(gaps[-1], abs=1e-3)


@every_recording
def test_speech_is_only_within_the_transcript_times(recording: SampleRecording) -> None:
    wave, rate = soundfile.read(SAMPLE / recording.path, always_2d=True)
    mono, transcript = wave.mean(axis=1), _transcript(recording)
    assert _misplaced(mono, rate, transcript) == []
    delay = round(0.025 * rate)
    assert _misplaced(np.roll(mono, delay), rate, transcript), "a codec's delay of 25 ms would not be noticed"


@pytest.mark.slow
@needs_flite
@every_recording
def test_rebuilding_gives_the_same_speech(recording: SampleRecording) -> None:
    version = subprocess.run(["flite", "--version"], capture_output=True, text=True).stdout
    if "flite-2.2" not in version:
        pytest.skip(f"the sample was made with flite 2.2, here is {version.strip()!r}")
    wave, transcript = make_sample_recordings.synthesize_recording(recording)
    assert transcript == _transcript(recording)
    if recording.path.endswith((".wav", ".flac")):
        rebuilt = make_sample_recordings.encode_recording(recording, wave)
        assert rebuilt == make_sample_recordings.encode_recording(recording, wave)
        _assert_same_samples(rebuilt, SAMPLE / recording.path)


@pytest.mark.slow
@needs_flite
def test_the_command_writes_recordings_and_transcripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_sample_recordings.main([str(tmp_path)]) == 0
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {path.relative_to(SAMPLE) for path in SAMPLE.rglob("*") if path.is_file() and path.name != "README.md"}
    assert len(written) == 8
    assert (tmp_path / "rms/workshop.wav").read_bytes() == (SAMPLE / "rms/workshop.wav").read_bytes()
    assert "rms/workshop.wav" in capsys.readouterr().out


def _assert_same_samples(rebuilt: bytes, committed: Path) -> None:
    """Equal but for the last bit, in which resamplers on different processors may differ."""
    ours, _ = soundfile.read(io.BytesIO(rebuilt), dtype="int16")
    theirs, _ = soundfile.read(committed, dtype="int16")
    assert ours.shape == theirs.shape
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1


def _transcript(recording: SampleRecording) -> list[dict]:
    return json.loads((SAMPLE / recording.path).with_suffix(".transcript.json").read_text(encoding="utf-8"))


def _misplaced(mono: np.ndarray, rate: int, transcript: list[dict]) -> list[str]:
    """Return where the recording and its times disagree: quiet sentences or edges of sentences, and rests that are not silent."""
    spoken = [(round(line["start"] * rate), round(line["end"] * rate)) for line in transcript]
    rests = list(zip([0, *(end for _, end in spoken)], [*(start for start, _ in spoken), len(mono)], strict=True))
    moment = round(0.02 * rate)
    room = float(np.median([_decibels(mono[start + moment : end - moment]) for start, end in rests]))
    quiet = [f"sentence at {start}" for start, end in spoken if _decibels(mono[start:end]) < -30]
    quiet += [f"start {start}" for start, _ in spoken if _decibels(mono[start : start + moment]) < room + 5]
    quiet += [f"end {end}" for _, end in spoken if _decibels(mono[end - moment : end]) < room + 5]
    return quiet + [f"rest {start}" for start, end in rests if _decibels(mono[start + moment : end - moment]) > -60]


def _decibels(wave: np.ndarray) -> float:
    """RMS relative to full scale."""
    return 10 * np.log10(np.mean(wave**2) + 1e-12)
