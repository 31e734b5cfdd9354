"""The training loop logs, evaluates, saves and stops at the configured steps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.checkpointing.retention import BestBy
from overtone.finetune.data import batching
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.exporting.evaluation_selection import select_by_evaluation
from overtone.finetune.monitoring.loss_spikes import NotFiniteError
from overtone.finetune.monitoring.run_logger import Events
from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.monitoring.stop_requests import StopRequests
from overtone.finetune.recipe import Batch, Sample, Term, discovery
from overtone.finetune.training import loop
from overtone.finetune.training.step import Training
from tests.finetune import tiny


def test_a_nan_validation_loss_stops_the_run_and_is_not_logged(tmp_path: Path, world: World) -> None:
    def sick(model: torch.nn.Module, batch: Batch) -> dict[str, Term]:
        return {
            name: Term(term.sum * (1.0 if model.training else math.nan), term.weight)
            for name, term in tiny.RECIPE.loss(model, batch).items()
        }

    val = tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(4))
    training, progress = tiny.built(world, tiny.config_in(tmp_path, ("data.val", str(val)), ("eval.every", "2")))
    with pytest.raises(NotFiniteError, match="step 2: validation loss nan"):
        fitted(replace(training, recipe=replace(training.recipe, loss=sick)), progress, world)
    assert of_kind(tmp_path / "run", "evaluation") == [] and "NaN" not in (tmp_path / "run" / "log.jsonl").read_text()


def fitted(training: Training, progress: loop.Progress, world: World, requests: StopRequests | None = None) -> tuple[loop.Progress, str]:
    config = training.config
    saver = checkpoint.Saver(world, config.run.dir, config.checkpoint.keep, config.checkpoint.asynchronous)
    events = Events(config.run.dir, world.accelerator, training.total, progress.step, {})
    try:
        return loop.fit(training, progress, events, saver, requests or StopRequests())
    finally:
        saver.close()
        events.close()


def test_metrics_are_shown_at_steps_and_evaluations(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """A term of weight 0, and what the recipe's report derives; not the terms of the loss, whose sum is shown."""

    def collate(samples: list[Sample]) -> Batch:
        batch = tiny.RECIPE.collate(samples)
        return replace(batch, targets={**batch.targets, "hits": len(samples)})

    def loss(model: torch.nn.Module, batch: Batch) -> dict[str, Term]:
        return {**tiny.RECIPE.loss(model, batch), "hits": Term(torch.tensor(0.75 * batch.targets["hits"]), 0.0)}

    measuring = replace(tiny.RECIPE, collate=collate, loss=loss, report=lambda means: {**means, "doubled": 2 * means["hits"]})
    val = tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(4))
    training, progress = tiny.built(world, tiny.config_in(tmp_path, ("data.val", str(val)), ("eval.every", "6")))
    fitted(replace(training, recipe=measuring), progress, world)
    lines = capsys.readouterr().out.splitlines()
    (step,) = [line for line in lines if line.startswith("step 6/6 ")]
    (evaluation,) = [line for line in lines if "validation loss" in line]
    assert "  hits 0.75  doubled 1.5  " in step and "next" not in step
    assert evaluation.endswith("  hits 0.75  doubled 1.5") and "next" not in evaluation


def of_kind(run: Path, kind: str) -> list[int]:
    return [event["step"] for event in read_log(run / "log.jsonl") if event["event"] == kind]


def test_the_base_is_evaluated_before_the_first_step_without_changing_a_number(tmp_path: Path, world: World) -> None:
    val = str(tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(5, seed=5)))
    found = {}
    for name in ("true", "false"):
        chosen = (("data.val", val), ("eval.at_start", name), ("eval.every", "3"), ("options.dropout", "0.3"))
        config = tiny.config_in(tmp_path / name, *chosen)
        training, progress = tiny.built(world, config)
        fitted(training, progress, world)
        log = [event for event in read_log(config.run.dir / "log.jsonl") if event["event"] in ("step", "evaluation")]
        found[name] = [(event["event"], event["step"], event.get("loss"), event.get("val/loss")) for event in log]
    (first, *rest) = found["true"]
    assert first[:2] == ("evaluation", 0) and first[3] > rest[-1][3] and rest == found["false"], "bit by bit, with dropout"
    training, progress = tiny.built(
        world, tiny.config_in(tmp_path / "true", ("data.val", val), ("eval.at_start", "true"), ("train.steps", "8"))
    )
    fitted(training, progress, world)
    assert of_kind(tmp_path / "true" / "run", "evaluation").count(0) == 1, "a resumed run starts where it was"


def test_a_stop_during_the_first_evaluation_trains_no_step(tmp_path: Path, world: World) -> None:
    val = tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(5, seed=5))
    config = tiny.config_in(tmp_path, ("data.val", str(val)), ("eval.at_start", "true"))
    requests = StopRequests()
    requests.record_signal("SIGTERM")
    progress, reason = fitted(*tiny.built(world, config), world, requests)
    assert (progress.step, reason) == (0, "stopped by SIGTERM on rank 0")
    assert not checkpoint.list_checkpoints(checkpoint.folder_of(config.run.dir))
    assert not (config.run.dir / "log.jsonl").exists(), "nothing has happened"
    progress, reason = fitted(*tiny.built(world, config), world)
    assert progress.step > 0 and 0 in of_kind(config.run.dir, "evaluation"), "the next launch begins with it"


@pytest.mark.parametrize("asynchronous", ["true", "false"])
def test_the_loop_logs_evaluates_and_saves_at_its_intervals(tmp_path: Path, world: World, asynchronous: str) -> None:
    val = tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(5, seed=5))
    every = (("log.every", "2"), ("eval.every", "3"), ("checkpoint.every", "4"), ("checkpoint.asynchronous", asynchronous))
    config = tiny.config_in(tmp_path, ("train.steps", "7"), ("data.val", str(val)), *every)
    progress, reason = fitted(*tiny.built(world, config), world)
    assert (progress.step, reason) == (7, "finished")
    assert of_kind(config.run.dir, "step") == [2, 4, 6, 7] and of_kind(config.run.dir, "evaluation") == [3, 6, 7]
    committed = [event["folder"] for event in read_log(config.run.dir / "log.jsonl") if event["event"] == "committed"]
    assert committed == ["step-00000004", "step-00000007"]
    last = [event["val/loss"] for event in read_log(config.run.dir / "log.jsonl") if event["event"] == "evaluation"][-1]
    assert checkpoint.read_state(checkpoint.find(config.run.dir))["validation_loss"] == last == progress.validation_loss


def test_a_late_commit_is_logged_with_its_own_step(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is slow: the first save ends just before the last one begins."""
    monkeypatch.setattr(checkpoint.Saver, "poll", lambda _: None)
    config = tiny.config_in(tmp_path, ("checkpoint.every", "4"))
    fitted(*tiny.built(world, config), world)
    assert of_kind(config.run.dir, "committed") == [4, 6]


def test_a_signal_stops_after_the_step_with_a_checkpoint_that_resumes(tmp_path: Path, world: World) -> None:
    whole, _ = fitted(*tiny.built(world, tiny.config_in(tmp_path / "whole")), world)
    config = tiny.config_in(tmp_path / "stopped")
    requests = StopRequests()
    requests.record_signal("SIGTERM")
    progress, reason = fitted(*tiny.built(world, config), world, requests)
    assert (progress.step, reason) == (1, "stopped by SIGTERM on rank 0")
    assert checkpoint.find(config.run.dir).name == "step-00000001"
    progress, reason = fitted(*tiny.built(world, config), world)
    assert (progress, reason) == (whole, "finished")
    losses = [
        [(e["step"], e["loss"]) for e in read_log(tmp_path / name / "run" / "log.jsonl") if e["event"] == "step"]
        for name in ("whole", "stopped")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 6, "bit by bit: dropout, order, moments and rate go on"


def evaluate_as_planned(monkeypatch: pytest.MonkeyPatch, planned: list[float | None], stop_at: tuple[int, ...] = ()) -> None:
    """One evaluation after the other finds these values of `score`, and a loss that falls; None: a signal interrupts it. During those with
    a number of `stop_at`, a signal arrives that does not."""
    rest = iter(enumerate(planned))

    def evaluate(_training: Training, _rows: object, requests: StopRequests) -> dict[str, float] | None:
        number, value = next(rest)
        if value is None or number in stop_at:
            requests.record_signal("SIGTERM")
        return None if value is None else {"loss": 9.0 - number, "score": value}

    monkeypatch.setattr(loop, "evaluate", evaluate)


PATIENT = (("eval.every", "1"), ("checkpoint.every", "1"), ("checkpoint.keep", "2"), ("train.steps", "9"), ("train.patience", "2"))


def test_patience_ends_the_run_and_the_best_checkpoint_is_kept(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    val = str(tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(3, seed=5)))
    chosen = (*PATIENT, ("data.val", val), ("checkpoint.best_by", "score max"))
    config = tiny.config_in(tmp_path, *chosen)
    evaluate_as_planned(monkeypatch, [0.1, 0.7, 0.7, 0.4])
    progress, reason = fitted(*tiny.built(world, config), world)
    assert (progress.step, progress.best_value, progress.stale_evaluations) == (4, 0.7, 2), "an equal value is no improvement"
    assert reason == "finished early: 2 evaluations without a better score than 0.7 (train.patience: 2)"
    kept = [checkpoint.step_of(path) for path in checkpoint.list_checkpoints(checkpoint.folder_of(config.run.dir))]
    assert kept == [4, 3, 2], "the newest two, and the best"
    evaluate_as_planned(monkeypatch, [])
    assert fitted(*tiny.built(world, config), world) == (progress, reason), "nothing is trained after the end"
    evaluate_as_planned(monkeypatch, [0.9, 0.8, 0.8, 0.8])
    progress, reason = fitted(*tiny.built(world, tiny.config_in(tmp_path, *chosen, ("train.patience", "3"))), world)
    assert (progress.step, progress.best_value) == (8, 0.9) and reason.startswith("finished early: 3 evaluations")


def test_patience_counts_the_same_after_a_stop(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    val = str(tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(3, seed=5)))
    ends = {}
    for name in ("whole", "stopped"):
        config = tiny.config_in(tmp_path / name, *PATIENT, ("data.val", val), ("checkpoint.best_by", "score"))
        evaluate_as_planned(monkeypatch, [0.5, 0.3, 0.4, 0.6, 0.1], (0, 2) if name == "stopped" else ())
        for step in (1, 3) if name == "stopped" else ():
            progress, reason = fitted(*tiny.built(world, config), world)
            assert progress.step == step and reason.startswith("stopped by SIGTERM")
        ends[name] = fitted(*tiny.built(world, config), world)
    assert ends["whole"] == ends["stopped"] and ends["whole"][0].step == 4 and ends["whole"][1].startswith("finished early")


@pytest.mark.parametrize("stopped_at", [2, 3], ids=["before the last step", "at the last step"])
def test_a_stop_during_an_evaluation_loses_none_of_the_choice(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, stopped_at: int
) -> None:
    """The checkpoint is saved without its evaluation, which the next launch makes: it is the best, so it is chosen and kept."""
    val = str(tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(3, seed=5)))
    steps = (("eval.every", "1"), ("checkpoint.every", "1"), ("checkpoint.keep", "2"), ("train.steps", "3"))
    config = tiny.config_in(tmp_path, *steps, ("data.val", val), ("checkpoint.best_by", "score"))

    evaluate_as_planned(monkeypatch, [*(0.5 for _ in range(1, stopped_at)), None])
    progress, reason = fitted(*tiny.built(world, config), world)
    assert (progress.step, reason) == (stopped_at, "stopped by SIGTERM on rank 0")
    folder = checkpoint.folder_of(config.run.dir)
    assert stopped_at not in checkpoint.read_metric(folder, BestBy("score"))
    evaluate_as_planned(monkeypatch, [0.1, *(0.9 for _ in range(3 - stopped_at))])
    for _ in range(2):  # the second of these launches evaluates nothing
        progress, reason = fitted(*tiny.built(world, config), world)
        assert (progress.step, progress.best_value, reason) == (3, 0.1, "finished")
    assert select_by_evaluation(config.run.dir).choice.step == stopped_at
    assert checkpoint.find_problem(folder / f"step-{stopped_at:08d}") is None


def test_another_metric_is_counted_from_the_start(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    val = str(tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(3, seed=5)))
    chosen = (*PATIENT, ("data.val", val), ("train.steps", "2"))
    evaluate_as_planned(monkeypatch, [0.5, 0.7])
    fitted(*tiny.built(world, tiny.config_in(tmp_path, *chosen, ("checkpoint.best_by", "score"))), world)
    _, progress = tiny.built(world, tiny.config_in(tmp_path, *chosen, ("checkpoint.best_by", "score")))
    assert (progress.best_value, progress.stale_evaluations) == (0.5, 1)
    _, progress = tiny.built(world, tiny.config_in(tmp_path, *chosen, ("checkpoint.best_by", "score max")))
    assert (progress.best_value, progress.stale_evaluations) == (0.7, 0)


def test_values_on_other_validation_rows_are_not_compared(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    val = str(tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(3, seed=5)))
    chosen = (*PATIENT, ("data.val", val), ("checkpoint.best_by", "score"))
    evaluate_as_planned(monkeypatch, [0.1, 0.2])
    fitted(*tiny.built(world, tiny.config_in(tmp_path, *chosen, ("train.steps", "2"))), world)
    tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(4, seed=6))
    training, progress = tiny.built(world, tiny.config_in(tmp_path, *chosen))
    assert (progress.best_value, progress.stale_evaluations) == (None, 0)
    folder, by_score = checkpoint.folder_of(training.config.run.dir), BestBy("score")
    assert checkpoint.read_metric(folder, by_score) == {1: 0.1, 2: 0.2}
    evaluate_as_planned(monkeypatch, [0.9, 0.8, 0.8, 0.8])
    progress, _ = fitted(training, progress, world)
    assert (progress.step, progress.best_value) == (6, 0.8), "the old rows' 0.1 would have ended it at step 4"
    assert checkpoint.read_metric(folder, by_score)[4] == 0.8 and 1 not in checkpoint.read_metric(folder, by_score)


def test_the_console_shows_the_metric_that_decides(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    val = str(tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(3, seed=5)))
    evaluate_as_planned(monkeypatch, [0.25])
    config = tiny.config_in(tmp_path, *PATIENT, ("data.val", val), ("checkpoint.best_by", "score max"), ("train.steps", "1"))
    fitted(*tiny.built(world, config), world)
    assert "step 1: validation loss 9.0000  score 0.25\n" in capsys.readouterr().out


def test_an_unknown_metric_is_refused_with_the_known_ones(tmp_path: Path, world: World) -> None:
    val = str(tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(3, seed=5)))
    config = tiny.config_in(tmp_path, ("data.val", val), ("checkpoint.best_by", "accurcy max"), ("eval.at_start", "true"))
    with pytest.raises(UserError, match=r"accurcy is not a metric of the evaluation; these are .*after_next, .*loss"):
        fitted(*tiny.built(world, config), world)


def test_epochs_decide_where_no_steps_are_given(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path, ("train.steps", "null"), ("train.epochs", "2"))
    training, progress = tiny.built(world, config)
    end, reason = fitted(training, progress, world)
    assert (end.step, reason) == (training.total, "finished") and training.total > 2
    assert list(batching.steps(training.order, training.rows.lengths, end.place, 2)) == []
    again, place = tiny.built(world, config)
    assert fitted(again, place, world) == (end, "finished"), "a finished run has nothing left to do"


def test_a_command_that_names_a_folder_with_a_space_can_be_copied(tmp_path: Path, world: World) -> None:
    training = tiny.built(world, tiny.config_in(tmp_path, ("run.dir", str(tmp_path / "my run"))))[0]
    assert f"export '{tmp_path}/my run' --step N --to FOLDER" in loop.describe_too_few_steps(training, tmp_path, 9)


def test_a_suggested_export_repeats_a_recipe_that_was_given_by_its_path(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = tiny.built(world, tiny.config_in(tmp_path))[0]
    assert "--recipe" not in loop.describe_too_few_steps(training, tmp_path, 9)
    monkeypatch.setattr(discovery, "built_in_recipes", lambda: ["llm_sft"])
    assert f"--step N --to FOLDER --recipe {tiny.FOLDER})" in loop.describe_too_few_steps(training, tmp_path, 9)


@pytest.mark.parametrize("budget", ["2", "1"])
def test_skipped_updates_are_counted_up_to_the_budget(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, budget: str) -> None:
    train_step = loop.train_step

    def fail_twice(training: Training, turns: list[batching.RankBatch], step: int, *rest: Any) -> dict[str, float]:
        if step in (1, 3):
            raise NotFiniteError("loss nan")
        return train_step(training, turns, step, *rest)

    monkeypatch.setattr(loop, "train_step", fail_twice)
    training, progress = tiny.built(world, tiny.config_in(tmp_path, ("train.steps", "5"), ("train.skip_nonfinite", budget)))
    if budget == "1":
        with pytest.raises(NotFiniteError):
            fitted(training, progress, world)
        return
    end, _ = fitted(training, progress, world)
    state = checkpoint.read_state(checkpoint.find(tmp_path / "run"))
    assert (end.step, end.skipped, state["skipped"], state["optimizer_steps"]) == (5, 2, 2, 3), "AdamW corrects its bias by applied updates"
