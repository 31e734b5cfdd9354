"""The stages after speech detection."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np

from overtone.data_prep.audio.waveform import SPEECH_RATE
from overtone.data_prep.recordings.recording_files import find_recordings
from overtone.data_prep.recordings.user_transcripts import UserTranscript, find_transcript
from overtone.data_prep.segmentation.clip_segmentation import Lengths
from overtone.data_prep.speakers import windowed_speaker_vectors
from overtone.data_prep.speakers.windowed_speaker_vectors import list_windows
from tests.data_prep.pipeline.recording_runs import run


def test_every_piece_with_a_text_is_measured_and_written_even_if_it_fails_the_rules(sample, job) -> None:
    source = next(one for one in find_recordings(sample, None, job.out) if one.name == "rms/railway.ogg")
    said = [one["text"] for one in json.loads(source.path.with_name("railway.transcript.json").read_text())]
    transcript = UserTranscript(utterances=[one for one in find_transcript(source.path).utterances if one.text != said[3]])
    recording, _, _ = run(source, transcript, replace(job, lengths=Lengths(target=3.0, shortest=1.0, longest=3.6)))
    assert [clip.text for clip in recording.clips if clip.text] == [text for text in said if text != said[3]]
    assert any(clip.seconds > 3.6 for clip in recording.clips)
    for clip in recording.clips:
        assert clip.quality.peak_dbfs > -40
        assert (job.out / clip.audio).is_file() if clip.text else clip.audio is None
    assert any(not clip.text for clip in recording.clips)


@dataclass(frozen=True)
class CountingEncoder:
    """A speaker encoder, and its own loaded form: the vector says how loud the sound is. `lengths`: seconds of each encoded sound."""

    lengths: list[float]
    digest: str = "counting"
    sample_rate: int = SPEECH_RATE
    shortest_seconds: float = 0.6
    dimensions: int = 2

    def load(self, _device: str = "cpu") -> CountingEncoder:
        return self

    def embed(self, clip: np.ndarray) -> np.ndarray:
        self.lengths.append(round(len(clip) / SPEECH_RATE, 2))
        return np.array([np.abs(clip).mean(), 0.1], np.float32)


def test_no_speech_passes_the_speaker_encoder_twice(sample, job) -> None:
    source = next(one for one in find_recordings(sample, None, job.out) if one.name == "rms/railway.ogg")
    encoder = CountingEncoder([])
    job, transcript = replace(job, encoder=encoder), find_transcript(source.path)
    recording, stages, _ = run(source, transcript, job)
    windows = [span for region in recording.regions for span in list_windows(region)]
    assert len(encoder.lengths) == len(windows) == len(recording.windows.spans) > len(recording.clips) > 5
    assert stages.computed["voice_windows"] == 1 and "voices" not in stages.computed
    for clip in recording.clips:
        np.testing.assert_array_equal(recording.voices[clip.id], recording.windows.average(clip.start, clip.stop))
    again, _, models = run(source, transcript, job)
    assert models.loads == {} and again.voices.keys() == recording.voices.keys()


def test_a_clip_without_a_window_is_encoded_itself(sample, job, monkeypatch) -> None:
    """Its words are shorter than what the encoder needs, but the clip is not."""
    source = next(one for one in find_recordings(sample, None, job.out) if one.name == "rms/railway.ogg")
    encoder = CountingEncoder([])
    monkeypatch.setattr(windowed_speaker_vectors, "list_windows", lambda region: [])
    recording, stages, _ = run(source, find_transcript(source.path), replace(job, encoder=encoder))
    assert encoder.lengths == [round(clip.seconds, 2) for clip in recording.clips] and stages.computed["voices"] == 1
    assert recording.voices.keys() == {clip.id for clip in recording.clips}
