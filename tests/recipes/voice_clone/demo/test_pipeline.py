"""The demo is what the README tells, stops where one command fails, and fails where its promise is not kept. `make demo` runs it whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from recipes.voice_clone.demo import comparison_clips, final_results, picture, pipeline
from recipes.voice_clone.demo.comparison_clips import BEFORE, SPOKEN
from recipes.voice_clone.demo.final_results import Figures, Outcome
from recipes.voice_clone.studio.corpus import grammar


def test_it_runs_the_commands_of_the_readme_in_order(tmp_path: Path) -> None:
    stages = pipeline.commands(tmp_path)
    assert list(stages) == ["voice", "codes", "train", "export", "generate", "evaluate"]
    words = {stage: " ".join(command) for stage, command in stages.items()}
    assert "-m data_prep voice" in words["voice"] and "-m data_prep codes" in words["codes"]
    assert "accelerate launch --config_file" in words["train"] and "finetune/train.py --recipe voice_clone" in words["train"]
    assert "-m finetune export" in words["export"] and "-m finetune generate" in words["generate"]
    assert "--speaker rms" in words["generate"], "the base has voices of its own"
    assert "-m finetune eval-voice" in words["evaluate"]
    settings = yaml.safe_load((pipeline.HERE / "demo.yaml").read_text())
    assert settings["train"]["precision"] == "fp32" and settings["model"]["source"] == pipeline.BASE


def test_what_it_says_was_in_no_training() -> None:
    assert {grammar.split_of(text) for text in pipeline.TEXTS} == {"held_out"}
    assert {word for text in pipeline.TEXTS for word in grammar.words_of(text)} <= set(grammar.vocabulary())


def test_it_stops_at_the_stage_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    touched = tmp_path / "later"
    failing = {
        "voice": [sys.executable, "-c", "raise SystemExit(3)"],
        "codes": [sys.executable, "-c", f"import pathlib; pathlib.Path({str(touched)!r}).touch()"],
    }
    monkeypatch.setattr(pipeline, "commands", lambda home: failing)
    assert pipeline.main() == 3
    assert "the demo stopped at `voice` (exit code 3)" in capfd.readouterr().err
    assert not touched.exists()


@pytest.mark.parametrize("wer", [0.1, 0.9])
def test_it_tells_what_came_of_it_and_fails_where_it_is_not_what_was_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wer: float
) -> None:
    figures = {title: Figures(wer, 1.0, 0.9 if title != BEFORE else 0.5, 0.4, "awb") for title in SPOKEN}
    found = Outcome(figures, 0.02, {"clips": 50, "rejected": 3, "rejected_by_reason": {"low_snr": 3}}, (4.0, 1.0))
    monkeypatch.setattr(final_results, "measure", lambda *given: found)
    monkeypatch.setattr(picture, "picture", lambda said: b"a picture")
    monkeypatch.setattr(comparison_clips, "read", lambda *given: {title: [] for title in SPOKEN})
    monkeypatch.setattr(comparison_clips, "through_codec", lambda *given: [])
    assert pipeline.finish(tmp_path, {"voice": 1.5, "train": 2.0}) == (wer > 0.5)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["seconds"]["all"] >= 3.5 and summary["systems"]["after"]["wer"] == wer and len(summary["demo_models"]) == 3
    told = capsys.readouterr()
    assert all(str(place) in told.out for place in pipeline.places(tmp_path).values()) and "0.900" in told.out
    assert ("the WER of the trained voice is 90%" in told.err) == (wer > 0.5)
