"""Tests of `overtone.recipes.speech.selection.candidate_measures`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.intelligibility import ErrorCounts
from overtone.recipes.speech.evaluation.scoring import ScoringModels
from overtone.recipes.speech.evaluation.speaker_similarity import SimilarityEncoder, group_vectors
from overtone.recipes.speech.evaluation.systems import Take
from overtone.recipes.speech.selection import candidate_measures
from overtone.recipes.speech.selection.candidate_measures import ClipRuler, expect_seconds, tabulate
from overtone.recipes.speech.selection.candidates import VoiceCandidate
from tests.recipes.speech.selection.selected import judged

RATE = 24_000


def sound(path: Path, seconds: float, pause: float = 0.0) -> Path:
    tone = 0.3 * np.sin(np.arange(round(seconds * RATE)) / 20)
    soundfile.write(path, np.concatenate([tone, np.zeros(round(pause * RATE))]), RATE)
    return path


def test_the_expected_seconds_are_those_of_the_speaker(tmp_path: Path) -> None:
    """Two seconds for ten characters; the pause does not count."""
    said = Item("a", "ten letter", "anna", "english", sound(tmp_path / "a.flac", 2.0, pause=1.0))
    others = [Item("b", "five!", "anna", "english"), Item("c", "five!", "bert", "english")]
    found = expect_seconds([said, *others], [said])
    assert found == {"a": pytest.approx(2.0, abs=0.021), "b": pytest.approx(1.0, abs=0.011)}, "nothing is known of bert"


def test_parts_of_a_clip_are_numerators_and_denominators(tmp_path: Path) -> None:
    plain, *rest = judged(tmp_path, "me", 3, 0.7)
    scored = plain.scored
    lost = replace(rest[0], scored=replace(rest[0].scored, errors=None, ended=False, similarities={"own encoder": None}))
    parts = tabulate([lost, plain], {scored.item.key: 1.2})
    assert parts[0].tolist() == [[3, 10], [0.7, 1], [1.2, 1.5], [0, 1]]
    assert parts[1].tolist() == [[0, 0], [0, 0], [0, 0], [1, 1]], "not ended, without a transcript"
    assert parts[:, 0].sum(axis=0).tolist() == [3, 10]


@pytest.fixture
def ruler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClipRuler:
    """With a recognizer that transcribes everything as `hello there`, and an encoder for clips of half a second."""
    monkeypatch.setattr(candidate_measures.intelligibility, "choose_language", lambda _, language: language)
    transcription = candidate_measures.intelligibility.Transcription("hello there", again=True)
    monkeypatch.setattr(candidate_measures.intelligibility, "transcribe_clips", lambda *_: [transcription])
    encoder = SimilarityEncoder("mine", lambda samples: np.array([1.0, samples.std()], np.float32), 0.5)
    real = {"anna": {tmp_path / "real.flac": np.array([1.0, 0.2], np.float32)}}
    return ClipRuler(ScoringModels(object(), [(encoder, group_vectors(encoder, real))]), encoder, {"seed": 0})


def candidate_in(folder: Path) -> VoiceCandidate:
    path = folder / "checkpoints" / "step-00000007"
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("{}")
    return VoiceCandidate(path, 0.7)


def test_measures_survive_on_disk_and_fit_nothing_else(ruler: ClipRuler, tmp_path: Path) -> None:
    one, items = candidate_in(tmp_path), [Item("b", "Hello there!", "anna", "english"), Item("a", "Good day.", "anna", "english")]
    own = tmp_path / "out" / one.slug
    own.mkdir(parents=True)
    takes = [Take(items[0], sound(own / "b.flac", 1.0, 0.2), True), Take(items[1], sound(own / "a.flac", 0.1), False)]
    measured = ruler.measure(one, takes, items, tmp_path / "out")
    assert [clip.scored.item.key for clip in measured] == ["a", "b"]
    assert measured[1].scored.errors == ErrorCounts(2, 0, 11, 0) and measured[1].has_good_ending and not measured[0].has_good_ending
    assert measured[0].scored.similarities == {"mine": 0.0}, "too short for a voice: the worst, not left out"
    assert measured[1].scored.similarities["mine"] == pytest.approx(0.999, abs=0.01)
    assert all(clip.scored.transcribed_again for clip in measured)
    assert ruler.restore(one, items, tmp_path / "out") == measured

    others: list[tuple[ClipRuler, VoiceCandidate, list[Item]]] = [
        (replace(ruler, settings={"seed": 1}), one, items),
        (ruler, one, items[:1]),
        (ruler, one, [replace(items[0], text="Hello here!"), items[1]]),
    ]
    assert [which.restore(what, texts, tmp_path / "out") for which, what, texts in others] == [None] * 3
    (one.checkpoint / "manifest.json").write_text("{ }")
    assert ruler.restore(one, items, tmp_path / "out") is None, "another checkpoint of the same step"
    (one.checkpoint / "manifest.json").write_text("{}")
    (own / "a.flac").unlink()
    assert ruler.restore(one, items, tmp_path / "out") is None


@pytest.mark.parametrize("change", [{"clips": 5}, {"clips": [{"key": "a"}]}, {"fingerprint": None}, None])
def test_damaged_measures_are_measured_again(ruler: ClipRuler, tmp_path: Path, change: dict[str, Any] | None) -> None:
    one, item = candidate_in(tmp_path), Item("a", "Good day.", "anna", "english")
    own = tmp_path / "out" / one.slug
    own.mkdir(parents=True)
    ruler.measure(one, [Take(item, sound(own / "a.flac", 1.0), True)], [item], tmp_path / "out")
    file = own / candidate_measures.MEASURES_FILE
    file.write_text("[" if change is None else json.dumps({**json.loads(file.read_text()), **change}))
    assert ruler.restore(one, [item], tmp_path / "out") is None
