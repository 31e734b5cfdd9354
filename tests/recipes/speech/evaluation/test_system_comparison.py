"""Tests of `overtone.recipes.speech.evaluation.system_comparison`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from overtone.recipes.speech.evaluation import system_comparison
from overtone.recipes.speech.evaluation.evaluation_items import SEEN, UNSEEN
from overtone.recipes.speech.evaluation.metric_aggregation import PACE, WER
from overtone.recipes.speech.evaluation.systems import RECORDINGS
from tests.recipes.voice_clone.evaluated import BASE, evaluation


def test_trained_voices_are_compared_with_the_base_on_the_same_texts(tmp_path: Path) -> None:
    rows = system_comparison.compare_with_base(evaluation(tmp_path))
    (row,) = [row for row in rows if (row.system, row.group, row.metric) == ("step 300", UNSEEN, WER)]
    assert (row.base, row.before, row.after, row.difference.texts) == (BASE, 30.0, 10.0, 6)
    assert row.difference.verdict == "better"
    assert {row.group for row in rows} == {SEEN, UNSEEN}
    assert {row.metric.key for row in rows} == {"wer", "cer", "similarity own encoder", "clipping", "runaways"}


def test_a_similarity_is_placed_between_another_speaker_and_the_speaker(tmp_path: Path) -> None:
    (found,) = system_comparison.similarity_scales(evaluation(tmp_path))
    assert (found.stranger, found.same) == (0.3, pytest.approx(0.855))
    assert found.places[RECORDINGS] == pytest.approx(1.0)
    assert found.places["step 300"] == pytest.approx((0.755 - 0.3) / 0.555)


def test_with_one_speaker_there_is_no_scale(tmp_path: Path) -> None:
    (found,) = system_comparison.similarity_scales(replace(evaluation(tmp_path), strangers={}))
    assert found.stranger is None and set(found.places.values()) == {None}


def test_speech_that_gets_faster_with_every_checkpoint_is_reported(tmp_path: Path) -> None:
    whole = evaluation(tmp_path)
    (first, second) = system_comparison.describe_pace_drifts(whole)
    assert "not in the training data: speech became 80% faster from step 100 to step 300" in first
    assert "Texts of the training data: speech became 80% faster" in second
    steady = replace(whole, clips=dict.fromkeys(whole.clips, whole.clips["step 100"]))
    assert system_comparison.describe_pace_drifts(steady) == []
    assert system_comparison.describe_pace_drifts(evaluation(tmp_path, ["step 100"])) == []


def test_a_curve_has_only_checkpoints(tmp_path: Path) -> None:
    points = system_comparison.checkpoint_curve(evaluation(tmp_path), PACE, SEEN)
    assert [step for step, _ in points] == [100, 200, 300]
    assert [value for _, value in points] == sorted(value for _, value in points)
