"""One recording through its stages."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyloudnorm
import pytest
import soundfile

from data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio
from data_prep.pipeline.one_recording import Job, PreparedRecording, prepare_recording, refuse_recording
from data_prep.pipeline.stage_cache import Stages
from data_prep.pipeline.worker_models import Models
from data_prep.recordings.recording_files import RecordingSource, find_recordings
from data_prep.recordings.timed_transcript import TimedUtterance
from data_prep.recordings.user_transcripts import UserTranscript, find_transcript
from data_prep.segmentation.clip_segmentation import Lengths
from data_prep.speakers import windowed_speaker_vectors
from data_prep.speakers.windowed_speaker_vectors import list_windows
from data_prep.transcription.whisper_engine import describe_settings

TEXT = "The night train to the north leaves from platform seven."


def write_take(folder: Path, sound: Audio) -> RecordingSource:
    """One sentence as a recording in `folder`/in."""
    (folder / "in").mkdir()
    soundfile.write(folder / "in" / "take.wav", sound.samples, sound.rate)
    return find_recordings(folder / "in", "me", folder / "out")[0]


@pytest.fixture
def take(tmp_path, one_sentence) -> RecordingSource:
    return write_take(tmp_path, one_sentence)


@pytest.fixture
def job(tmp_path) -> Job:
    return Job(tmp_path / "out", Lengths(), "english", None)


@pytest.fixture(scope="module")
def first_run(tmp_path_factory, one_sentence) -> tuple[PreparedRecording, Job, Models]:
    """The recording prepared with `TEXT` in a folder without stored results. For reading."""
    folder = tmp_path_factory.mktemp("first")
    job = Job(folder / "out", Lengths(), "english", None)
    recording, _, models = run(write_take(folder, one_sentence), UserTranscript(text=TEXT), job)
    return recording, job, models


@pytest.fixture
def prepared(first_run, take, job) -> PreparedRecording:
    """The recording of the first run; the folder of `job` holds its stored results and clips."""
    recording, first_job, _ = first_run
    shutil.copytree(first_job.out, job.out)
    return replace(recording, source=take)


def run(source, transcript, job, whisper=None):
    stages = Stages(job.out / "stages")
    with Models(whisper, "cpu", stages.folder, job.encoder) as models:
        return prepare_recording(source, transcript, job, stages, models), stages, models


def test_a_clip_is_as_long_as_its_place_in_the_source_and_holds_its_samples(first_run, one_sentence) -> None:
    recording, job, models = first_run
    assert models.loads == {"vad": 1}
    (clip,) = recording.clips
    samples, rate = soundfile.read(job.out / clip.audio, dtype="float32")
    assert rate == MASTER_RATE
    assert len(samples) == clip.stop - clip.start == round(clip.seconds * MASTER_RATE)
    original = (one_sentence.samples - one_sentence.samples.mean()) * 10 ** (clip.gain_db / 20)
    inner = slice(120, len(samples) - 120)  # without the fades
    assert np.abs(samples[inner] - original[clip.start : clip.stop][inner]).max() < 1e-3  # the gain is rounded to two decimals
    assert pyloudnorm.Meter(rate).integrated_loudness(samples) == pytest.approx(-23, abs=0.5)
    assert (clip.text, clip.language, recording.source.name, recording.total) == (TEXT, "english", "take.wav", len(one_sentence.samples))


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


def test_a_second_run_loads_no_model_and_decodes_nothing(take, job, prepared) -> None:
    take.path.unlink()
    again, stages, models = run(take, UserTranscript(text=TEXT), job)
    assert again == prepared
    assert models.loads == {}
    assert (dict(stages.computed), dict(stages.reused)) == ({}, {"speech": 1, "clips": 1})


def test_a_lost_clip_is_written_again(take, job, prepared) -> None:
    path = job.out / prepared.clips[0].audio
    before = path.read_bytes()
    path.unlink()
    again, stages, _ = run(take, UserTranscript(text=TEXT), job)
    assert again == prepared
    assert path.read_bytes() == before
    assert stages.computed == {"clips": 1}


@pytest.mark.parametrize("change", [{"text": "Another text of a similar length, to be read."}, {"language": "german"}])
@pytest.mark.usefixtures("prepared")
def test_another_text_or_language_is_computed_anew(change, take, job) -> None:
    if "language" in change:
        job = replace(job, language="german")
    recording, stages, _ = run(take, UserTranscript(text=change.get("text", TEXT)), job)
    assert stages.computed == {"clips": 1}
    (clip,) = recording.clips
    assert {"text": clip.text, "language": clip.language}.items() >= change.items()


@pytest.mark.parametrize("change", [{"speaker": "you"}, {"name": "other.wav"}])
@pytest.mark.usefixtures("prepared")
def test_another_speaker_or_file_name_computes_nothing(change, take, job) -> None:
    recording, stages, _ = run(replace(take, **change), UserTranscript(text=TEXT), job)
    assert stages.computed == {}
    assert recording.source == replace(take, **change)


def test_whisper_transcribes_a_recording_and_is_loaded_once(take, job, whisper_that_says) -> None:
    weights = str(whisper_that_says(TEXT))
    job = replace(job, language=None, whisper_settings=describe_settings(weights, None))
    recording, stages, models = run(take, None, job, weights)
    (clip,) = recording.clips
    assert (clip.text, clip.language) == (TEXT, "english")
    assert clip.quality.avg_logprob > -0.1
    assert models.loads == {"vad": 1, "whisper": 1}
    assert set(stages.computed) == {"speech", "words", "clips"}
    _, _, models = run(take, None, job, weights)
    assert models.loads == {}


def test_an_unreadable_recording_is_rejected_with_the_reason(take, job) -> None:
    take.path.write_bytes(b"garbage")
    recording, _, _ = run(take, UserTranscript(text=TEXT), job)
    assert (recording.refused, recording.clips, recording.total) == ("unreadable", (), 0)


def test_a_recording_without_speech_is_rejected(take, job) -> None:
    soundfile.write(take.path, np.random.default_rng(0).normal(0, 0.001, 48_000), 24_000)
    recording, _, _ = run(take, UserTranscript(text=TEXT), job)
    assert (recording.refused, recording.total, recording.regions) == ("no_speech", 48_000, ())


def test_a_failed_transcription_is_reported_and_tried_again_by_the_next_run(take, job, whisper_that_says, monkeypatch) -> None:
    import whisper

    weights = str(whisper_that_says(TEXT))
    listening = replace(job, whisper_settings=describe_settings(weights, "english"))
    with monkeypatch.context() as broken:
        broken.setattr(whisper, "decode", lambda *_: 1 / 0)
        failed, _, _ = run(take, None, listening, weights)
    assert [(clip.text, clip.audio, clip.quality.asr_error) for clip in failed.clips] == [("", None, "ZeroDivisionError: division by zero")]
    again, stages, _ = run(take, None, listening, weights)
    assert [clip.text for clip in again.clips] == [TEXT]
    assert stages.computed == {"words": 1, "clips": 1} and stages.reused == {"speech": 1}


def test_without_transcript_and_whisper_a_recording_is_refused_with_all_its_samples(take, job, one_sentence) -> None:
    recording, stages, _ = run(take, None, job)
    assert (recording.refused, recording.total) == ("no_transcript", len(one_sentence.samples))
    assert stages.computed == {"speech": 1}


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


def test_a_refused_recording_accounts_for_its_samples(take) -> None:
    recording = refuse_recording(take, "silent", "nothing in it", 36_000)
    assert (recording.total, recording.regions, recording.detail) == (36_000, ((0, 36_000),), "nothing in it")


def test_a_file_damaged_after_speech_detection_is_rejected_and_the_rejection_is_not_stored(take, job) -> None:
    whole = take.path.read_bytes()
    run(take, None, job)
    take.path.write_bytes(b"garbage")
    recording, _, _ = run(take, UserTranscript(text=TEXT), job)
    assert recording.refused == "unreadable"
    take.path.write_bytes(whole)
    assert len(run(take, UserTranscript(text=TEXT), job)[0].clips) == 1


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
