"""A run chooses by what is measured of its samples: the same checkpoint on 1 and 2 ranks, and after kill -9, as in one go on its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from overtone.finetune import __main__ as verbs
from overtone.finetune import train
from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.checkpointing.sample_measurement_records import RECORD, folder_of_step
from overtone.finetune.config import Config, resolve
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_logger import Events
from overtone.finetune.monitoring.run_records import read_json
from overtone.finetune.monitoring.stop_requests import StopRequests
from overtone.finetune.recipe import find_recipe, load_recipe
from overtone.finetune.training import run as training_run
from overtone.finetune.training.early_stopping_by_samples import SampleChoice
from overtone.finetune.training.generation_during_training import Sampler
from overtone.finetune.training.sample_metrics_preparation import SamplePlan
from tests.finetune import tiny
from tests.finetune.training.waiting import within
from tests.launch.launching import ALONE, ROOT, byte_data, command, launch, series

FOLDER = ROOT / "tests" / "measured_bytes"
ERRORS = {2: 5.0, 4: 1.0, 6: 3.0, 8: 4.0, 10: 0.5, 12: 0.1}
"""Step 4 is the best before a patience of 2 is used up at step 8; what comes later would be better."""


def planted(errors: dict[int, float]) -> str:
    return json.dumps([json.dumps({str(step): error for step, error in errors.items()})])


def config_in(folder: Path, errors: dict[int, float], *overrides: tuple[str, str]) -> Config:
    tiny.config_in(folder)  # writes base and rows
    own = {
        **{"run.dir": folder / "run", "model.source": folder / "base", "data.train": folder / "train.jsonl", "log.trackers": "[]"},
        **{"sample.every": 2, "sample.prompts": planted(errors), "checkpoint.best_by": "sample/error", "checkpoint.keep": 2},
    }
    recipe = load_recipe(find_recipe(str(FOLDER)))
    merged = {**{key: str(value) for key, value in own.items()}, **dict(overrides)}
    return resolve(str(FOLDER), recipe.Options, [FOLDER / "config.yaml"], merged.items())


def kept(run: Path) -> set[int]:
    return {checkpoint.step_of(path) for path in checkpoint.list_checkpoints(checkpoint.folder_of(run))}


# --- one process


@pytest.mark.slow  # two processes generate, at the lowest priority
@pytest.mark.ci
def test_the_run_waits_for_its_measurements_and_the_best_is_exported(
    tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_in(tmp_path, {2: 1.0, 4: 3.0}, ("train.steps", "4"))
    recipe = load_recipe(find_recipe(str(FOLDER)))
    assert training_run.train(world, config, recipe) == "finished"
    shown = capsys.readouterr().out
    assert "waiting until the samples of 2 checkpoints are measured" in shown
    assert "best step    2, lowest sample/error 1.0000 (step 4: 3.0000)" in shown
    events = series(config.run.dir, "measured")
    assert [(event["step"], event["sample/error"]) for event in events] == [(2, 1.0), (4, 3.0)]
    record = read_json(folder_of_step(config.run.dir, 2) / RECORD)
    assert record["metrics"]["error"] == 1.0 and record["texts"][0]["answer"] == "step 2" and record["sampling"] == {}
    tiny.let_go(config.run.dir)
    words = ["export", str(config.run.dir), "--recipe", str(FOLDER), "--best", "--to", str(tmp_path / "best")]
    assert verbs.main(words) == 0
    said = "step 2 at strength 1, as selected: lowest sample/error of 2 kept and measured checkpoints: 1"
    assert said in capsys.readouterr().out and read_json(tmp_path / "best" / "overtone.json")["step"] == 2


def commit(config: Config, step: int, settings: str = "these") -> None:
    folder = checkpoint.folder_of(config.run.dir) / f"step-{step:08d}"
    folder.mkdir(parents=True)
    state = tiny.state(step, best_by="sample/error min", sampling=settings, sample_due=True)
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "manifest.json").write_text("{}")


def sampler_of(config: Config, world: World, done: int) -> Sampler:
    events = Events(config.run.dir, world.accelerator, 12, done, {})
    return Sampler(config, 12, events, True, world.device, plan=SamplePlan("these", None, decides=True), done=done)


def test_checkpoints_without_a_measurement_are_measured_after_a_resume_in_order(tmp_path: Path, world: World) -> None:
    config = config_in(tmp_path, ERRORS)
    for step in (2, 4, 6):
        commit(config, step)
    commit(config, 5, settings="others")
    commit(config, 8)  # damaged, say: the run resumes from 6
    with sampler_of(config, world, done=6) as sampler:
        assert [*sampler._due] == [2, 4, 6]
        for step in (10, 12):
            sampler.after_step(step)
        assert sampler._child is not None and sampler._child.step == 2
        assert [*sampler._due] == [4, 6, 10, 12], "none is passed over"
        assert sampler.assess() == (5, 0, None, False)
        sampler._child.close()
        sampler._child = None


def test_a_step_that_was_not_saved_is_passed_over_once_a_later_one_was(tmp_path: Path, world: World) -> None:
    config = config_in(tmp_path, ERRORS)
    with sampler_of(config, world, done=0) as sampler:
        sampler.after_step(2)
        assert [*sampler._due] == [2] and sampler._child is None, "its save may be in progress"
        commit(config, 4)
        sampler.after_step(4)
        assert sampler._child is not None and sampler._child.step == 4 and not sampler._due
        sampler._child.close()
        sampler._child = None
        sampler.after_step(6)
        assert not sampler.advance(last=True) and not sampler._due, "no save is in progress at the end"
    assert [event["step"] for event in series(config.run.dir, "sampling passed over")] == [2, 6]


def test_a_metric_that_no_sample_has_ends_the_run(tmp_path: Path, world: World) -> None:
    config = config_in(tmp_path, ERRORS, ("checkpoint.best_by", "sample/beauty"))
    folder = folder_of_step(config.run.dir, 2)
    folder.mkdir(parents=True)
    (folder / RECORD).write_text(json.dumps({"step": 2, "manifest": "", "settings": "these", "metrics": {"error": 1.0}}))
    with sampler_of(config, world, done=2) as sampler:
        choice = SampleChoice(world, config, sampler, sampler._events)
        with (
            pytest.raises(UserError, match="sample/beauty is not a metric of the samples; these are sample/error"),
            StopRequests() as requests,
        ):
            choice.wait(requests, 0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"sample.every": "null", "sample.prompts": "[]"}, "is a metric of samples, but none are generated; give sample.every"),
        ({"sample.asr": "small"}, "sample.asr: the recipe .* makes no speech; remove it"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused_before_training(tmp_path: Path, overrides: dict[str, str], message: str) -> None:
    config = config_in(tmp_path, ERRORS, *overrides.items())
    with pytest.raises(UserError, match=message):
        train.load_checked_recipe(config)


# --- real launches


def arguments(folder: Path, run: Path, *more: object) -> list[object]:
    data = byte_data(folder)
    data[data.index("--recipe") + 1] = FOLDER
    settings = ["--run.dir", run, "--train.steps", 6, "--sample.every", 2, "--sample.prompts", planted(ERRORS), "--checkpoint.keep", 2]
    return [*data, *settings, "--checkpoint.best_by", "sample/error", "--checkpoint.every", 1, *more]


def facts(run: Path) -> dict[int, dict[str, Any]]:
    """Metrics by step, as they were recorded."""
    return {int(path.parent.name[5:]): read_json(path)["metrics"] for path in sorted((run / "samples").glob(f"step-*/{RECORD}"))}


@pytest.mark.slow
@pytest.mark.ci
def test_patience_ends_the_run_at_the_same_choice_on_1_and_2_ranks(tmp_path: Path) -> None:
    found = {}
    for ranks in (1, 2):
        (tmp_path / str(ranks)).mkdir()
        run = tmp_path / str(ranks) / "run"
        said = launch(
            "cpu" if ranks == 1 else "fsdp2", ranks, *arguments(tmp_path / str(ranks), run, "--train.steps", 30, "--train.patience", 2)
        )
        found[ranks] = facts(run)
        assert "2 measured samples without a better value than 1 of sample/error (train.patience: 2)" in said
        assert read_json(run / "exit.json")["reason"].startswith("finished early")
        assert 4 in kept(run) and not {1, 2, 3, 5, 6, 7, 8} & kept(run), "what was only kept to be measured is gone"
        assert "best step    4, lowest sample/error 1.0000" in said
    assert [*found[1]] == [*found[2]] == [2, 4, 6, 8]
    for step in found[1]:
        assert found[1][step]["norm"] == pytest.approx(found[2][step]["norm"], rel=1e-6)


@pytest.mark.slow
@pytest.mark.ci
def test_after_kill_9_measurements_are_not_repeated_and_the_choice_is_the_same(tmp_path: Path) -> None:
    runs = {name: tmp_path / name / "run" for name in ("whole", "killed")}
    for run in runs.values():
        run.parent.mkdir()
    launch("fsdp2", 2, *arguments(runs["whole"].parent, runs["whole"]))
    words = arguments(runs["killed"].parent, runs["killed"])
    with subprocess.Popen(
        command("fsdp2", 2, *words), cwd=ROOT, env=ALONE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        assert within(200, lambda: bool(facts(runs["killed"])) or process.poll() is not None)
        assert process.poll() is None, "it ended before it was killed"
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        for member in family:
            member.kill()
        psutil.wait_procs(family, timeout=30)
    before = {step: (folder_of_step(runs["killed"], step) / RECORD).stat().st_mtime_ns for step in facts(runs["killed"])}
    said = launch("fsdp2", 2, *words)
    assert facts(runs["killed"]) == facts(runs["whole"]) and [*facts(runs["whole"])] == [2, 4, 6]
    assert before == {step: (folder_of_step(runs["killed"], step) / RECORD).stat().st_mtime_ns for step in before}, "measured once"
    assert "best step    4, lowest sample/error 1.0000" in said and kept(runs["killed"]) == kept(runs["whole"]) == {4, 5, 6}
    logged = [(event["step"], event["sample/error"]) for event in series(runs["killed"], "measured")]
    assert logged == [(2, 5.0), (4, 1.0), (6, 3.0)], "each is in the log, at its step"


@pytest.mark.slow
def test_a_stop_while_the_run_waits_is_a_stop_and_the_same_command_measures_the_rest(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = arguments(tmp_path, run)
    with subprocess.Popen(command("fsdp2", 2, *words), cwd=ROOT, env=ALONE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert within(200, lambda: bool(series(run, "sampled")) if (run / "log.jsonl").is_file() else False)
        (worker, *_) = [one for one in psutil.Process(process.pid).children(recursive=True) if "finetune/train.py" in one.cmdline()]
        os.kill(worker.pid, signal.SIGTERM)
        process.communicate(timeout=120)
    record = read_json(run / "exit.json")
    assert record["reason"].startswith("stopped by SIGTERM") and len(facts(run)) < 3
    assert "best step    4, lowest sample/error" in launch("fsdp2", 2, *words)
    assert read_json(run / "exit.json")["reason"] == "finished" and [*facts(run)] == [2, 4, 6]
