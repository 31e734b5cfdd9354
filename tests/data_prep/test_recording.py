"""One recording through its stages."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from data_prep.audio import MASTER_RATE
from data_prep.recording import Job, Models, prepare, refused
from data_prep.segment import Lengths
from data_prep.sources import scan
from data_prep.stages import Stages
from data_prep.transcribe import settings
from data_prep.transcripts import Transcript, find

TEXT = "The night train to the north leaves from platform seven."


@pytest.fixture
def take(tmp_path, one_sentence):
    """One sentence as a recording."""
    folder = tmp_path / "in"
    folder.mkdir()
    soundfile.write(folder / "take.wav", one_sentence.samples, one_sentence.rate)
    return scan(folder, "me", tmp_path / "out")[0]


@pytest.fixture
def job(tmp_path) -> Job:
    return Job(tmp_path / "out", Lengths(), "english", None)


def run(source, transcript, job, whisper=None):
    stages, models = Stages(job.out / "stages"), Models(whisper, "cpu")
    return prepare(source, transcript, job, stages, models), stages, models


def test_a_clip_is_as_long_as_its_place_in_the_source_and_holds_its_samples(take, job, one_sentence) -> None:
    outcome, _, _ = run(take, Transcript(text=TEXT), job)
    (row,) = outcome.rows
    samples, rate = soundfile.read(job.out / row.audio, dtype="float32")
    assert rate == MASTER_RATE
    assert len(samples) == round((row.end - row.start) * MASTER_RATE) == round(row.duration * MASTER_RATE)
    original = one_sentence.samples - one_sentence.samples.mean()
    start = round(row.start * MASTER_RATE)
    inner = slice(120, len(samples) - 120)  # without the fades
    assert np.abs(samples[inner] - original[start : start + len(samples)][inner]).max() < 2e-4
    assert (row.text, row.speaker, row.language, row.source) == (TEXT, "me", "english", "take.wav")
    assert outcome.account.kept == len(samples)


def test_a_second_run_loads_no_model_and_decodes_nothing(take, job, monkeypatch) -> None:
    first, _, models = run(take, Transcript(text=TEXT), job)
    assert models.loads == {"vad": 1}
    take.path.unlink()
    again, stages, models = run(take, Transcript(text=TEXT), job)
    assert again == first
    assert models.loads == {}
    assert (dict(stages.computed), dict(stages.reused)) == ({}, {"speech": 1, "clips": 1})


def test_a_lost_clip_is_written_again(take, job) -> None:
    outcome, _, _ = run(take, Transcript(text=TEXT), job)
    path = job.out / outcome.rows[0].audio
    before = path.read_bytes()
    path.unlink()
    again, stages, _ = run(take, Transcript(text=TEXT), job)
    assert again == outcome
    assert path.read_bytes() == before
    assert stages.computed == {"clips": 1}


@pytest.mark.parametrize("change", [{"text": "Another text of a similar length, to be read."}, {"language": "german"}, {"speaker": "you"}])
def test_other_inputs_make_other_results(change, take, job) -> None:
    run(take, Transcript(text=TEXT), job)
    if "language" in change:
        job = replace(job, language="german")
    source = replace(take, speaker=change.get("speaker", "me"))
    outcome, stages, _ = run(source, Transcript(text=change.get("text", TEXT)), job)
    assert stages.computed == {"clips": 1}
    assert {
        "text": outcome.rows[0].text,
        "language": outcome.rows[0].language,
        "speaker": outcome.rows[0].speaker,
    }.items() >= change.items()


def test_whisper_hears_a_recording_and_is_loaded_once(take, job, whisper_that_says) -> None:
    weights = str(whisper_that_says(TEXT))
    job = replace(job, language=None, hearing=settings(weights, None))
    outcome, stages, models = run(take, None, job, weights)
    (row,) = outcome.rows
    assert (row.text, row.language) == (TEXT, "english")
    assert row.quality.avg_logprob > -0.1
    assert models.loads == {"vad": 1, "whisper": 1}
    assert set(stages.computed) == {"speech", "words", "clips"}
    _, _, models = run(take, None, job, weights)
    assert models.loads == {}


def test_what_is_wrong_with_a_recording_becomes_a_reject(take, job, tmp_path) -> None:
    take.path.write_bytes(b"garbage")
    outcome, _, _ = run(take, Transcript(text=TEXT), job)
    (reject,) = outcome.rejects
    assert (reject.stage, reject.reasons, reject.source) == ("recording", ["unreadable"], "take.wav")
    assert outcome.rows == []


def test_a_recording_without_speech_is_all_silence(take, job) -> None:
    soundfile.write(take.path, np.random.default_rng(0).normal(0, 0.001, 48_000), 24_000)
    outcome, _, _ = run(take, Transcript(text=TEXT), job)
    assert outcome.rejects[0].reasons == ["no_speech"]
    assert (outcome.account.non_speech, outcome.account.rejected) == (48_000, 0)


def test_rejected_pieces_keep_text_measures_and_all_reasons(sample, tmp_path, job) -> None:
    source = next(one for one in scan(sample, None, job.out) if one.name == "rms/railway.ogg")
    outcome, _, _ = run(source, find(source.path), replace(job, lengths=Lengths(target=3.0, shortest=1.0, longest=3.6)))
    assert outcome.rows
    assert outcome.rejects
    assert {tuple(reject.reasons) for reject in outcome.rejects} == {("too_long",)}
    assert all(reject.text and reject.quality and reject.end - reject.start > 3.6 for reject in outcome.rejects)
    texts = {entry.text for entry in [*outcome.rows, *outcome.rejects]}
    assert texts == {one["text"] for one in json.loads(source.path.with_name("railway.transcript.json").read_text())}


def test_a_refused_recording_accounts_for_its_seconds(take) -> None:
    outcome = refused(take, "silent", "nothing in it", 1.5)
    assert (outcome.account.total, outcome.account.rejected) == (36_000, 36_000)
    assert (outcome.rejects[0].end, outcome.rejects[0].detail) == (1.5, "nothing in it")
