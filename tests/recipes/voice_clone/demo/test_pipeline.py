"""The demo's stages are the commands of the README; it stops if one fails, and fails if a result breaks its promise. `make demo` runs all
of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from overtone.finetune.errors import UserError
from overtone.recipes.voice_clone.demo import comparison_clips, demo_metrics, pipeline, spectrograms
from overtone.recipes.voice_clone.demo.comparison_clips import BEFORE, SPOKEN
from overtone.recipes.voice_clone.demo.demo_metrics import Figures, Outcome
from workshop.demo_models.corpus import grammar


def test_the_demo_runs_the_commands_of_the_readme_in_order(tmp_path: Path) -> None:
    stages = pipeline.build_commands(tmp_path)
    assert list(stages) == ["voice", "codes", "train", "export", "generate", "evaluate"]
    words = {stage: " ".join(command) for stage, command in stages.items()}
    assert "-m overtone voice" in words["voice"] and "-m overtone codes" in words["codes"]
    assert "accelerate launch --config_file" in words["train"] and "finetune/train.py --recipe voice_clone" in words["train"]
    assert "--strength 0.6" in words["export"]
    assert "-m overtone export" in words["export"] and "-m overtone generate" in words["generate"]
    assert f"--data.train {tmp_path / 'data' / 'train.shifted.jsonl'}" in words["train"] and "--time-shifts 7" in words["codes"]
    assert "--run.seed 0" in words["train"] and "--run.seed 3" in " ".join(pipeline.build_commands(tmp_path, 3)["train"])
    assert "--speaker rms" in words["generate"], "the base has its own voices"
    assert "-m overtone eval-voice" in words["evaluate"] and "--asr whisper-demo-en --codec codec-demo" in words["evaluate"]
    assert "--asr my.pt --codec" in " ".join(pipeline.build_commands(tmp_path, asr="my.pt")["evaluate"])
    settings = yaml.safe_load((pipeline.HERE / "demo.yaml").read_text())
    assert settings["train"]["precision"] == "fp32" and settings["model"]["source"] == pipeline.BASE


def test_the_demo_texts_are_held_out() -> None:
    assert {grammar.find_split(text) for text in pipeline.TEXTS} == {"held_out"}
    assert {word for text in pipeline.TEXTS for word in grammar.split_words(text)} <= set(grammar.list_words())


def test_the_demo_stops_at_the_stage_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    touched = tmp_path / "later"
    failing = {
        "voice": [sys.executable, "-c", "raise SystemExit(3)"],
        "codes": [sys.executable, "-c", f"import pathlib; pathlib.Path({str(touched)!r}).touch()"],
    }
    monkeypatch.setattr(pipeline, "build_commands", lambda home, seed, asr: failing)
    assert pipeline.main(["--asr", ""]) == 3
    assert "the demo stopped at `voice` (exit code 3)" in capfd.readouterr().err
    assert not touched.exists()


def test_a_released_recognizer_judges_where_it_is_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert pipeline.find_released_whisper() == ""
    for place, found in ((pipeline.BUILT_WHISPER, str(pipeline.BUILT_WHISPER)), (Path("cache/whisper/tiny.en.pt"), "tiny.en")):
        place.parent.mkdir(parents=True)
        place.touch()
        assert pipeline.find_released_whisper() == found


def test_a_missing_recognizer_is_refused_before_the_demo_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="--asr nobody.pt"):
        pipeline.main(["--asr", "nobody.pt"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wer", [0.1, 0.9])
def test_the_demo_prints_its_results_and_fails_if_a_promise_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wer: float
) -> None:
    figures = {title: Figures(wer, 1.0, 0.9 if title != BEFORE else 0.5, 0.4, "awb") for title in SPOKEN}
    found = Outcome(figures, 0.02, {"clips": 50, "rejected": 3, "rejected_by_reason": {"low_snr": 3}}, (4.0, 1.0))
    monkeypatch.setattr(demo_metrics, "measure_demo", lambda *given: found)
    monkeypatch.setattr(spectrograms, "draw_spectrograms", lambda clips, judge: b"a picture by " + judge.encode())
    monkeypatch.setattr(comparison_clips, "read_clips", lambda *given: {title: [] for title in SPOKEN})
    assert pipeline.finish("", tmp_path, {"voice": 1.5, "train": 2.0}) == (wer > 0.5)
    assert (tmp_path / "spectrograms.png").read_bytes() == b"a picture by whisper-demo-en"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["seconds"]["all"] >= 3.5 and summary["systems"]["after"]["wer"] == wer and len(summary["demo_models"]) == 3
    printed = capsys.readouterr()
    assert all(str(place) in printed.out for place in pipeline.list_outputs(tmp_path).values()) and "0.900" in printed.out
    assert ("the WER of the trained voice is 90%" in printed.err) == (wer > 0.5)
