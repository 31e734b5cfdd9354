"""Tests of `overtone.recipes.speech.selection.candidates`."""

from __future__ import annotations

from pathlib import Path

from overtone.recipes.speech.selection.candidates import list_candidates


def test_the_simplest_candidate_comes_first(tmp_path: Path) -> None:
    steps = [tmp_path / f"step-{step:08d}" for step in (10, 20)]
    listed = list_candidates(steps, [1.0, 0.0, 0.7, 1.0])
    assert [one.name for one in listed] == [
        "step 10, strength 0",
        "step 10, strength 0.7",
        "step 20, strength 0.7",
        "step 10, strength 1",
        "step 20, strength 1",
    ]
    assert len({one.slug for one in listed}) == 5 and listed[1].system.title == "Trained voice at step 10, strength 0.7"
