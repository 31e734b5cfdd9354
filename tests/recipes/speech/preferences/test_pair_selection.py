"""Tests of `overtone.recipes.speech.preferences.pair_selection`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from overtone.recipes.speech.evaluation.intelligibility import ErrorCounts
from overtone.recipes.speech.preferences.pair_selection import MAX_WER, ClipRecord, choose_pair, store_measures
from overtone.recipes.speech.preferences.reward_weights import RewardWeights
from overtone.recipes.speech.preferences.speech_judge import compute_reward
from tests.recipes.speech.preferences.test_speech_judge import GOOD

PLAIN = RewardWeights()
WRONG = ErrorCounts(words=3, wrong_words=1, characters=12, wrong_characters=4)


def make_clip(key: str, similarity: float = 0.8, **changes: Any) -> ClipRecord:
    measures = replace(GOOD, similarity=similarity, **changes)
    return ClipRecord(
        **{
            "key": key,
            "text": "A boat sails.",
            "speaker": "rms",
            "language": "english",
            "audio": f"clips/{key}.flac",
            "seed": 1,
            "sha256": key,
        },
        codes=[[ord(key)] * 16],
        **store_measures(measures),
    )


def test_the_best_and_the_worst_clip_are_a_pair_with_their_measures() -> None:
    clips = [make_clip("b", 0.7), make_clip("a", 0.9), make_clip("c", 0.4)]
    row = choose_pair(clips, PLAIN, 0.1, MAX_WER)
    assert isinstance(row, dict) and (row["text"], row["speaker"], row["language"]) == ("A boat sails.", "rms", "english")
    assert (row["chosen_codes"], row["rejected_codes"]) == (clips[1].codes, clips[2].codes)
    assert (row["chosen_audio"], row["rejected_ended"]) == ("clips/a.flac", True)
    assert row["margin"] == pytest.approx(0.5 * 0.5 / 1.5)
    assert row["chosen_measures"].items() >= {"similarity": 0.9, "wer": 0.0, "transcript": "a boat sails", "good_ending": True}.items()  # type: ignore[union-attr]


def test_measures_survive_the_file() -> None:
    clip = make_clip("a")
    assert ClipRecord.model_validate_json(clip.model_dump_json()).measures == GOOD
    assert compute_reward(clip.measures, PLAIN) == compute_reward(GOOD, PLAIN)


@pytest.mark.parametrize(
    ("clips", "reason"),
    [
        ([make_clip("a", 0.8), make_clip("b", 0.79)], "the margin is too small"),
        ([make_clip("a", 0.9, transcript=None), make_clip("b", 0.1)], "the recognizer failed"),
        ([make_clip("a", 0.9), make_clip("a", 0.9)], "all clips are the same"),
        ([make_clip("a", 0.9, ended=False), make_clip("b", 0.1, ended=False, repetition=1.0)], "no clip ends well"),
        ([make_clip("a", 0.9, errors=WRONG), make_clip("b", 0.1, errors=WRONG)], "no clip that ends well has a WER of at most 0.2"),
    ],
)
def test_a_text_without_a_clear_pair_has_a_reason(clips: list[ClipRecord], reason: str) -> None:
    assert choose_pair(clips, PLAIN, 0.1, MAX_WER) == reason


def test_the_chosen_clip_is_a_good_one() -> None:
    """The clip with the highest reward has a bad ending or wrong words, which the weights ignore."""
    weights = RewardWeights(intelligibility=0.0, ending=0.0)
    for worse in ({"errors": WRONG}, {"ended": False}):
        row = choose_pair([make_clip("a", 0.9, **worse), make_clip("b", 0.8), make_clip("c", 0.1)], weights, 0.1, MAX_WER)
        assert isinstance(row, dict) and (row["chosen_audio"], row["rejected_audio"]) == ("clips/b.flac", "clips/c.flac")
    row = choose_pair([make_clip("a", 0.9, errors=WRONG), make_clip("c", 0.1)], weights, 0.1, 0.5)
    assert isinstance(row, dict) and row["chosen_audio"] == "clips/a.flac"


def test_the_weights_decide() -> None:
    clips = [make_clip("a", 0.9), make_clip("b", 0.2)]
    assert choose_pair(clips, RewardWeights(similarity=0.0), 0.1, MAX_WER) == "the margin is too small"
