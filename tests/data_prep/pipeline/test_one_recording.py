"""One recording through its stages."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pyloudnorm
import pytest
import soundfile

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.pipeline.recording_results import Job, PreparedRecording
from overtone.data_prep.pipeline.worker_models import Models
from overtone.data_prep.recordings.user_transcripts import UserTranscript
from overtone.data_prep.segmentation.clip_segmentation import Lengths
from overtone.data_prep.transcription.whisper_engine import describe_settings
from tests.data_prep.pipeline.recording_runs import TEXT, run, write_take


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
