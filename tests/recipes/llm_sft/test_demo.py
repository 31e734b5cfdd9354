"""Tests of `overtone.recipes.llm_sft.demo`; `make demo-llm` runs the whole demo."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest
import yaml

from overtone.finetune.exporting import export
from overtone.recipes.llm_sft import demo, toy_chats
from overtone.recipes.llm_sft.model import tiny_checkpoint
from tests.launch.launching import ROOT
from tests.recipes.llm_sft import tiny_runs


def test_the_demo_runs_the_commands_of_a_user_in_order(tmp_path: Path) -> None:
    stages = demo.make_commands(tmp_path)
    assert list(stages) == ["base", "task", "data", "train", "export"]
    words = {stage: " ".join(command) for stage, command in stages.items()}
    assert "-m overtone text" in words["data"] and "-m overtone export" in words["export"]
    assert "accelerate launch --config_file" in words["train"] and "finetune/train.py --recipe llm_sft" in words["train"]
    settings = [yaml.safe_load((demo.HERE / name).read_text()) for name in ("config.yaml", "debug.yaml")]
    assert settings[0]["data"]["packing"] is True and "packing" not in settings[1]["data"]


def test_the_demo_stops_at_a_stage_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    touched = tmp_path / "later"
    failing = {
        "base": [sys.executable, "-c", "raise SystemExit(3)"],
        "task": [sys.executable, "-c", f"import pathlib; pathlib.Path({str(touched)!r}).touch()"],
    }
    monkeypatch.setattr(demo, "make_commands", lambda home: failing)
    assert demo.main() == 3
    assert "the demo stopped at `base` (exit code 3)" in capfd.readouterr().err
    assert not touched.exists()


def test_exact_match_of_memorized_chats_is_one_and_of_the_base_zero(tmp_path: Path) -> None:
    chance = random.Random(1)
    rows = [toy_chats.make_chat(chance, frozenset()) for _ in range(3)]
    tiny_checkpoint.build(tmp_path / "base")
    batch = (("train.steps", "40"), ("train.lr", "5e-3"), ("train.global_batch_tokens", "1000"), ("train.micro_tokens", "150"))
    run = tiny_runs.trained(tmp_path, ("data.packing", "true"), ("data.val", str(tmp_path / "chats.jsonl")), *batch, data=rows)
    made = export.export(run, tmp_path / "export")
    chats = tmp_path / "chats.jsonl"
    assert len({len(toy_chats.list_questions(row)) for row in rows}) > 1
    assert demo.exact_match(tmp_path / "base", chats) == 0.0
    assert demo.exact_match(made, chats) == 1.0
    (tmp_path / "wrong.jsonl").write_text(chats.read_text().replace('"assistant", "content": "', '"assistant", "content": "Z'))
    assert demo.exact_match(made, tmp_path / "wrong.jsonl") == 0.0


def test_the_summary_has_the_figures_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    events = [{"event": "step", "step": step, "loss": loss} for step, loss in ((1, 5.5), (2, 1.0), (3, 0.25))]
    events += [{"event": "evaluation", "step": step, "val/loss": loss} for step, loss in ((2, 0.9), (3, 0.3))]
    (tmp_path / "run" / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    figures = demo.make_summary(tmp_path, {"data": 1.5, "train": 2.0}, 0.0, 0.97)
    assert figures == {
        "exact_match_before": 0.0,
        "exact_match_after": 0.97,
        "loss": {"first": 5.5, "last": 0.25, "validation": 0.3},
        "steps": 3,
        "seconds": {"data": 1.5, "train": 2.0, "all": 3.5},
    }
    demo.print_summary(tmp_path, figures)
    printed = capsys.readouterr().out
    assert "0.0% before training, 97.0% after" in printed
    for place in ("export", "run/loss.png", "summary.json"):
        assert str(tmp_path / place) in printed


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_demo_learns_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert demo.main() == 0
    figures = json.loads((tmp_path / "runs" / "demo-llm" / "summary.json").read_text())
    assert figures["exact_match_before"] <= 0.01 and figures["exact_match_after"] >= 0.9
