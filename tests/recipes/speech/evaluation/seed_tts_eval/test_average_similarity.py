"""Averages and lines of similarities; their agreement with the public script is in test_wavlm_ecapa.py."""

from __future__ import annotations

import pytest

from overtone.recipes.speech.evaluation.seed_tts_eval.average_similarity import AverageSimilarity, average_similarity, format_line
from tests.recipes.speech.evaluation.seed_tts_eval import stand_ins


@pytest.mark.parametrize("language", ["en", "zh"])
def test_averages_and_lines_are_those_of_the_public_script(language: str) -> None:
    golden, scores = stand_ins.read_golden()["languages"][language], list[float]()
    for line in golden["sim"]:
        pair, score = line.split("\t")
        clip, prompt = (name.removesuffix("_0_-1") for name in pair.split("|"))
        scores.append(float(score))
        assert format_line(clip, prompt, scores[-1]) == line
    found = average_similarity(scores)
    assert found is not None and [f"ASV: {found.mean}", f"ASV-var: {found.variance}"] == golden["sim_printed"]


def test_the_variance_is_that_of_the_population() -> None:
    assert average_similarity([0.5, 1.0]) == AverageSimilarity(0.75, 0.062) and average_similarity([]) is None
