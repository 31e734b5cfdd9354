"""Tests of `overtone.recipes.speech.evaluation.metric_aggregation`, with values computed by hand and differences with and without an
effect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from overtone.recipes.speech.evaluation import metric_aggregation
from overtone.recipes.speech.evaluation.audio_measures import AudioMeasures
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.intelligibility import ErrorCounts
from overtone.recipes.speech.evaluation.metric_aggregation import ScoredClip, metric_value


def clip(key: str = "1", wrong: int = 1, words: int = 10, seconds: float = 2.0, text: str = "x" * 20, ended: bool = True) -> ScoredClip:
    return ScoredClip(
        item=Item(key, text, "a", "english"),
        path=Path(f"{key}.flac"),
        sound=AudioMeasures(seconds, silent_seconds=seconds / 4, clipped_seconds=0.0),
        ended=ended,
        real_seconds=2.0,
        transcript="words",
        errors=ErrorCounts(words, wrong, 5 * words, 2 * wrong),
        similarities={"encoder": 0.5},
    )


def test_rates_are_computed_over_all_clips_together() -> None:
    both = [clip(wrong=1, words=1), clip(wrong=0, words=99)]
    assert metric_value(metric_aggregation.WER, both) == pytest.approx(1.0), "the mean of the rates would be 50 %"
    assert metric_value(metric_aggregation.CER, both) == pytest.approx(100 * 2 / 500)


def test_metrics_equal_values_computed_by_hand() -> None:
    clips = [clip(seconds=3.0), clip(seconds=1.0, ended=False)]
    assert metric_value(metric_aggregation.DURATION, clips) == 1.5, "a clip that was cut off has no duration"
    assert metric_value(metric_aggregation.PACE, clips) == pytest.approx(20 / 2.25)
    assert metric_value(metric_aggregation.SILENCE, clips) == 25.0
    assert metric_value(metric_aggregation.RUNAWAYS, clips) == 50.0
    assert metric_value(metric_aggregation.similarity_metric("encoder"), clips) == 0.5
    assert metric_value(metric_aggregation.similarity_metric("other"), clips) is None


def test_stretched_speech_shows_in_duration_and_pace() -> None:
    slow = clip(seconds=2.6)
    assert metric_value(metric_aggregation.DURATION, [slow]) == pytest.approx(1.3)
    assert metric_value(metric_aggregation.PACE, [clip()]) == pytest.approx(1.3 * (metric_value(metric_aggregation.PACE, [slow]) or 0))


def test_a_clip_without_a_transcript_is_excluded() -> None:
    without = replace(clip(wrong=10), errors=None, transcript=None)
    assert metric_value(metric_aggregation.WER, [clip(wrong=1), without]) == 10.0
    assert metric_value(metric_aggregation.WER, [without]) is None


def test_an_effect_is_detected_and_noise_is_not() -> None:
    before = [clip(str(number), wrong=3 + number % 3) for number in range(40)]
    better = [clip(str(number), wrong=1 + number % 3) for number in range(40)]
    noisy = [clip(str(number), wrong=3 + (number + 1) % 3) for number in range(40)]
    found = metric_aggregation.paired_difference(metric_aggregation.WER, better, before)
    assert found is not None and found.verdict == "better" and found.texts == 40
    assert found.change == pytest.approx(-20.0) and found.low is not None and found.high is not None
    assert found.low <= -20.0 <= found.high < 0
    back = metric_aggregation.paired_difference(metric_aggregation.WER, before, better)
    assert back is not None and back.verdict == "worse"
    same = metric_aggregation.paired_difference(metric_aggregation.WER, noisy, before)
    assert same is not None and same.verdict == "no clear difference"


def test_few_texts_give_no_verdict() -> None:
    for count, verdict in ((5, "too few texts"), (6, "better")):
        found = metric_aggregation.paired_difference(
            metric_aggregation.WER, [clip(str(at), 1) for at in range(count)], [clip(str(at), 9) for at in range(count)]
        )
        assert found is not None and found.verdict == verdict and (found.low is None) == (found.high is None) == (count < 6)


def test_higher_similarity_is_better() -> None:
    low = [clip(str(number)) for number in range(10)]
    high = [replace(one, similarities={"encoder": 0.8}) for one in low]
    found = metric_aggregation.paired_difference(metric_aggregation.similarity_metric("encoder"), high, low)
    assert found is not None and found.verdict == "better" and found.change == pytest.approx(0.3)


def test_only_texts_that_both_spoke_are_compared() -> None:
    found = metric_aggregation.paired_difference(
        metric_aggregation.WER, [clip("1"), clip("2"), clip("3")], [clip("2"), clip("3"), clip("4")]
    )
    assert found is not None and found.texts == 2
    assert metric_aggregation.paired_difference(metric_aggregation.WER, [clip("1")], [clip("1")]) is None
    assert metric_aggregation.paired_difference(metric_aggregation.DURATION, [clip("1"), clip("2")], [clip("1"), clip("2")]) is None


def test_runaways_are_clips_that_the_model_did_not_end() -> None:
    assert metric_value(metric_aggregation.RUNAWAYS, [clip("1"), clip("2"), clip("3"), clip("4", ended=False)]) == 25.0
