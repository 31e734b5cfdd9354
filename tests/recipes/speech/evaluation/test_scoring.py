"""Tests of `overtone.recipes.speech.evaluation.scoring` with real files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from overtone.finetune.errors import UserError
from overtone.recipes.speech.evaluation import metric_aggregation, scoring, speaker_similarity
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.intelligibility import Recognizer, Transcription
from overtone.recipes.speech.evaluation.metric_aggregation import DURATION, PACE, metric_value
from overtone.recipes.speech.evaluation.systems import RECORDINGS, Take
from tests.recipes.voice_clone.conftest import voice

VOICES = {"low": (110.0, 0.9), "high": (233.0, 0.5)}


def write_wave(path: Path, wave: np.ndarray) -> Path:
    soundfile.write(path, wave, 24_000)
    return path


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> list[Item]:
    """Two speakers, two recordings each."""
    folder = tmp_path_factory.mktemp("clips")
    return [
        Item(f"{name}{at}", "x" * 15, name, "english", write_wave(folder / f"{name}{at}.flac", voice(*sound, 1.0 + at / 10)))
        for name, sound in VOICES.items()
        for at in range(2)
    ]


@pytest.fixture(scope="module")
def models(items: list[Item]) -> scoring.ScoringModels:
    return scoring.load_scoring_models(items, [speaker_similarity.mfcc_encoder()], None)


def recordings(items: list[Item]) -> list[Take]:
    return [Take(item, item.recording, True) for item in items if item.recording]


def test_the_same_voice_is_more_similar_than_another(items: list[Item], models: scoring.ScoringModels, tmp_path: Path) -> None:
    right = [Take(item, write_wave(tmp_path / f"{item.key}.flac", voice(*VOICES[item.speaker], 1.1)), True) for item in items]
    swapped = [replace(take, path=other.path) for take, other in zip(right, right[2:] + right[:2], strict=True)]
    scored = scoring.score_all({RECORDINGS: recordings(items), "right": right, "swapped": swapped}, models)
    metric = metric_aggregation.similarity_metric(speaker_similarity.SPECTRAL)
    found = {name: metric_value(metric, clips) for name, clips in scored.items()}
    assert found["right"] is not None and found["swapped"] is not None and found[RECORDINGS] is not None
    assert found["right"] > 0.5 > 0 > found["swapped"]
    (stranger,) = scoring.similarity_between_speakers(models).values()
    assert abs(found["swapped"] - stranger) < abs(found["right"] - stranger), "another voice is at the lower end of the scale"


def test_stretched_speech_shows_in_duration_and_pace(items: list[Item], models: scoring.ScoringModels, tmp_path: Path) -> None:
    slow = [Take(item, write_wave(tmp_path / f"{item.key}.flac", voice(*VOICES[item.speaker], 1.5)), True) for item in items]
    scored = scoring.score_all({RECORDINGS: recordings(items), "slow": slow}, models)
    assert metric_value(DURATION, scored["slow"]) == pytest.approx(6.0 / 4.2)
    assert metric_value(PACE, scored["slow"]) == pytest.approx(60 / 6.0) and metric_value(PACE, scored[RECORDINGS]) == pytest.approx(
        60 / 4.2
    )


def test_silence_is_measured_and_no_error(items: list[Item], models: scoring.ScoringModels, tmp_path: Path) -> None:
    mute = [Take(item, write_wave(tmp_path / f"{item.key}.flac", np.zeros(24_000)), False) for item in items[:1]]
    scored = scoring.score_all({RECORDINGS: recordings(items), "mute": mute}, models)
    (one,) = scored["mute"]
    assert one.sound.silent_seconds == one.sound.seconds == 1.0 and one.similarities == {speaker_similarity.SPECTRAL: None}
    assert [note for note in scoring.describe_failures(scored, models) if note.startswith("mute: 1 of 1 clips have no similarity")]


def test_unsure_transcripts_are_counted(items: list[Item], models: scoring.ScoringModels, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([Transcription("a boat", again=True), Transcription("a boat"), Transcription("a boat", again=True)])
    monkeypatch.setattr(scoring.intelligibility, "transcribe_clips", lambda *_: [next(found)])
    monkeypatch.setattr(scoring.intelligibility, "choose_language", lambda *_: "english")
    heard = replace(models, asr=Recognizer(None))
    (note,) = scoring.describe_failures({"tuned": [scoring.score(take, heard, None) for take in recordings(items)[:3]]}, heard)
    assert note.startswith("tuned: 2 of 3 first transcripts were unsure; each of these clips was transcribed at 3 places")


def test_texts_without_a_word_are_counted(items: list[Item], models: scoring.ScoringModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring.intelligibility, "transcribe_clips", lambda *_: [Transcription("ha")])
    monkeypatch.setattr(scoring.intelligibility, "choose_language", lambda *_: "english")
    heard = replace(models, asr=Recognizer(None))
    takes = [Take(replace(items[0], text=text), items[0].recording or Path(), True) for text in ("(laughs)", "Hmm.", "Yes (of course).")]
    (note,) = scoring.describe_failures({"tuned": [scoring.score(take, heard, None) for take in takes]}, heard)
    assert note == 'tuned: 2 of 3 texts have no word for the WER, as "(laughs)" or "Hmm", and are not in it.'


def test_a_clip_is_not_compared_with_its_recording_and_its_reference(models: scoring.ScoringModels, items: list[Item]) -> None:
    ((_, voices),) = models.encoders
    own, other = items[0].recording, items[1].recording
    assert own is not None and other is not None
    assert scoring.excluded_clips(voices, items[0]) == {own}
    assert scoring.excluded_clips(voices, replace(items[0], recording=None, reference=other)) == {other}
    assert scoring.excluded_clips(voices, replace(items[0], reference=other)) == {own}, "otherwise no clip would be left to compare with"


def test_a_clip_that_cannot_be_decoded_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.flac").write_bytes(b"fLaC" + bytes(100))
    with pytest.raises(UserError, match=r"broken\.flac cannot be used \(unreadable"):
        scoring.check_clips([Item("1", "Hello.", "a", "auto", tmp_path / "broken.flac")])
