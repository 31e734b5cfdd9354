"""Tests of `overtone.recipes.speech.evaluation.results`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from overtone.recipes.speech.evaluation.systems import RECORDINGS
from tests.recipes.voice_clone.evaluated import BASE, STEPS, evaluation


def test_a_metric_without_values_has_no_column(tmp_path: Path) -> None:
    whole = evaluation(tmp_path)
    without_transcripts = {name: [replace(clip, errors=None) for clip in clips] for name, clips in whole.clips.items()}
    keys = [metric.key for metric in replace(whole, clips=without_transcripts).metrics]
    assert keys == ["similarity own encoder", "duration_ratio", "pace", "silence", "clipping", "runaways"]
    assert whole.names == [RECORDINGS, *STEPS, BASE]
