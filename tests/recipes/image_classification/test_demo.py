"""Tests of `overtone.recipes.image_classification.demo`; `make demo-images` runs the whole demo."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from overtone.recipes.image_classification import demo
from tests.launch.launching import ROOT
from tests.recipes.image_classification.tiny_images import LABELS, write_images, write_rows


def test_the_demo_runs_the_commands_of_a_user_with_each_seed(tmp_path: Path) -> None:
    stages = demo.make_commands(tmp_path, [0, 1, 2])
    words = {stage: " ".join(command) for stage, command in stages.items()}
    assert list(stages)[:2] == ["digits", "data"] and len(stages) == 2 + 3 * 3
    assert "-m overtone images" in words["data"] and "-m overtone export" in words["export 2"]
    assert "accelerate launch --config_file" in words["train 1"] and "--run.seed 1" in words["train 1"]


def test_accuracy_is_the_share_of_labels_that_the_pipeline_puts_first(exported: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in write_images(tmp_path, 3, "val", first=50).read_text().splitlines()]
    assert demo.measure_accuracy(exported, tmp_path / "val.jsonl") == 1.0
    turned = dict(zip(sorted(LABELS), [*sorted(LABELS)[1:], "blue"], strict=True))
    write_rows(tmp_path / "wrong.jsonl", [{**row, "label": turned[row["label"]]} for row in rows[:6]] + rows[6:])
    assert demo.measure_accuracy(exported, tmp_path / "wrong.jsonl") == pytest.approx(3 / 9, abs=1e-3)


def test_the_summary_has_the_figures_of_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "rows.jsonl", [{}] * 5)
    (tmp_path / "data").mkdir()
    (tmp_path / "rows.jsonl").rename(tmp_path / "data" / "val.jsonl")
    for seed in (0, 1):
        (tmp_path / f"run-{seed}").mkdir()
        events = [{"event": "evaluation", "step": 0, "val/loss": 2.3, "val/accuracy": 0.1}]
        events += [{"event": "step", "step": step, "loss": 2.0 / step + seed} for step in (1, 50)]
        (tmp_path / f"run-{seed}" / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    figures = demo.make_summary(tmp_path, {"train 0": 3.0, "train 1": 4.5}, {0: 0.98, 1: 0.97})
    assert figures["lowest_accuracy"] == 0.97 and figures["accuracy_before"] == 0.1 and figures["held_out_images"] == 5
    assert figures["seeds"]["0"] == {"accuracy": 0.98, "steps": 50, "loss": {"first": 2.0, "last": 0.04, "validation": 2.3}}
    assert figures["seeds"]["1"]["loss"] == {"first": 3.0, "last": 1.04, "validation": 2.3}
    demo.print_summary(tmp_path, figures)
    assert (
        "5 held-out digits, read correctly: 10.0% before training; after training, 98.0% with seed 0, 97.0% with seed 1"
        in capsys.readouterr().out
    )


def test_a_result_below_the_promise_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "measure_accuracy", lambda model, rows: {"export-0": 0.97, "export-1": 0.95}[model.name])
    monkeypatch.setattr(demo, "make_summary", lambda home, seconds, accuracies: {"lowest_accuracy": min(accuracies.values())})
    monkeypatch.setattr(demo, "print_summary", lambda home, figures: None)
    assert demo.measure(tmp_path, {}, [0]) == 0 and capsys.readouterr().err == ""
    assert demo.measure(tmp_path, {}, [0, 1]) == 1
    assert "error: 95.0% is less than the promised 96%" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_demo_reads_the_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert demo.main([]) == 0
    figures = json.loads((tmp_path / "runs" / "demo-images" / "summary.json").read_text())
    assert figures["accuracy_before"] < 0.3 and figures["lowest_accuracy"] >= 0.96
