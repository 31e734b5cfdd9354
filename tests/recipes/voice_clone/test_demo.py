"""The demo is the README's five commands, stops where one fails, and tells figures that it found. `make demo` runs it whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import soundfile
import yaml

from recipes.voice_clone import demo


def test_it_runs_the_commands_of_the_readme_in_order(tmp_path: Path) -> None:
    stages = demo.commands(tmp_path)
    assert list(stages) == ["base", "voice", "codes", "train", "export", "generate"]
    words = {stage: " ".join(command) for stage, command in stages.items()}
    assert "-m data_prep voice" in words["voice"] and "-m data_prep codes" in words["codes"]
    assert "accelerate launch --config_file" in words["train"] and "finetune/train.py --recipe voice_clone" in words["train"]
    assert "-m finetune export" in words["export"] and "-m finetune generate" in words["generate"]
    assert yaml.safe_load((demo.HERE / "debug.yaml").read_text())["train"]["precision"] == "fp32"


def test_it_stops_at_the_stage_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    touched = tmp_path / "later"
    failing = {
        "voice": [sys.executable, "-c", "raise SystemExit(3)"],
        "codes": [sys.executable, "-c", f"import pathlib; pathlib.Path({str(touched)!r}).touch()"],
    }
    monkeypatch.setattr(demo, "commands", lambda home: failing)
    assert demo.main() == 3
    assert "the demo stopped at `voice` (exit code 3)" in capfd.readouterr().err
    assert not touched.exists()


def test_the_figures_are_what_the_stages_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "data").mkdir()
    steps = [{"event": "step", "step": step, "loss": loss} for step, loss in ((1, 8.5), (2, 4.0), (3, 0.25))]
    (tmp_path / "run" / "log.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    told = {"clips": 33, "rejected": 2, "rejected_by_reason": {"too_short": 2}}
    (tmp_path / "data" / "summary.json").write_text(json.dumps(told))
    soundfile.write(tmp_path / "hello.wav", [0.0] * 36000, 24000)
    figures = demo.summarise(tmp_path, {"voice": 1.5, "train": 2.0}, 0.75)
    assert figures["seconds"] == {"voice": 1.5, "train": 2.0, "all": 3.5}
    assert figures["clips"] == {"kept": 33, "rejected": 2, "rejected_by_reason": {"too_short": 2}}
    assert figures["loss"] == {"first": 8.5, "last": 0.25} and figures["codes_regenerated"] == 0.75
    assert figures["wav"] == {"path": str(tmp_path / "hello.wav"), "seconds": 1.5}
    demo.report(tmp_path, figures)
    said = capsys.readouterr().out
    for place in ("hello.wav", "data/summary.json", "run/loss.png", "summary.json"):
        assert str(tmp_path / place) in said
