"""However a run ends, its log and exit.json give the reason; failures beside the training are warnings."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import GradientState, PartialState

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.data.batching import RankBatch
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.loss_spikes import NotFiniteError
from overtone.finetune.monitoring.rank_failure_detection import RunFailure
from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.recipe import Term
from overtone.finetune.storage import files
from overtone.finetune.training import loop, run
from overtone.finetune.training.step import Training
from tests.finetune import tiny


def test_idle_gpus_come_with_the_command_that_uses_them(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("sys.orig_argv", ["python", "-m", "finetune", "train", "--recipe", "llm_sft", "--model.lora", "{rank: 16}"])
    run.warn_of_idle_gpus(world)
    warning, command = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: 7 of the 8 visible GPUs of ")
    assert command == "  to use all of them: overtone train --launch fsdp2 --recipe llm_sft --model.lora '{rank: 16}'"


def test_a_nan_is_recorded_and_the_save_in_progress_is_committed(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny.config_in(tmp_path, ("checkpoint.every", "2"))
    step = loop.train_step

    def third_is_nan(training: Training, turns: list[RankBatch], number: int, *rest: Any) -> dict[str, float]:
        if number == 2:
            raise NotFiniteError("step 3: loss nan")
        return step(training, turns, number, *rest)

    monkeypatch.setattr(loop, "train_step", third_is_nan)
    monkeypatch.setattr(checkpoint.Saver, "poll", lambda _: None)
    with pytest.raises(NotFiniteError):
        run.train(world, config, tiny.RECIPE)
    record = json.loads((config.run.dir / "exit.json").read_text())
    assert (record["reason"], record["step"], record["last_commit"]) == ("not finite", 2, "step-00000002")


def test_a_launch_without_an_exit_record_is_reported_by_the_next(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny.config_in(tmp_path, ("train.steps", "2"))
    run.train(world, config, tiny.RECIPE)
    (config.run.dir / "exit.json").unlink()
    run.train(world, config, tiny.RECIPE)
    account = f"the last launch in {config.run.dir} left no exit.json: its process ended without a message (killed, crashed, "
    assert f"warning: {account}" in capsys.readouterr().out
    (event,) = [event for event in read_log(config.run.dir / "log.jsonl") if event["event"] == "killed"]
    assert event["account"].startswith(account)
    run.train(world, config, tiny.RECIPE)
    assert "left no exit.json" not in capsys.readouterr().out, "that one left its record"


def test_a_failure_before_the_first_step_is_recorded(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path)
    with pytest.raises(UserError, match="1 invalid row:"):
        tiny.write_rows(tmp_path / "train.jsonl", ["x"])
        run.train(world, config, tiny.RECIPE)
    left = json.loads((config.run.dir / "exit.json").read_text())
    assert (left["reason"], left["rank"], left["step"]) == ("refused", 0, None), "no step was reached"
    assert "text must hold at least three bytes" in left["message"]


def test_a_refused_command_leaves_a_finished_run_finished(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path, ("train.steps", "2"))
    run.train(world, config, tiny.RECIPE)
    before = (config.run.dir / "exit.json").read_bytes()
    with pytest.raises(UserError, match="steps"):
        run.train(world, tiny.config_in(tmp_path, ("train.steps", "1")), tiny.RECIPE)
    assert (config.run.dir / "exit.json").read_bytes() == before


@pytest.mark.parametrize("earlier", [None, b'{"reason": "finished"}'])
def test_ctrl_c_before_the_first_step_is_a_stop(tmp_path: Path, world: World, earlier: bytes | None) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    config = tiny.config_in(tmp_path)
    if earlier is not None:
        files.write_bytes(config.run.dir / "exit.json", earlier)
    with pytest.raises(KeyboardInterrupt):
        run.train(world, config, replace(tiny.RECIPE, load=interrupt))
    left = json.loads((config.run.dir / "exit.json").read_text())
    if earlier is not None:
        assert left == {"reason": "finished"}, "an interrupted command leaves a finished run finished"
    else:
        assert (left["reason"], left["message"]) == ("stopped by SIGINT before the first step", "interrupted by Ctrl-C")


def test_the_exit_record_of_another_run_is_kept(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path, ("train.steps", "1"))
    run.train(world, config, tiny.RECIPE)
    before = (config.run.dir / "exit.json").read_text()
    other = files.lock_folder(config.run.dir)
    with pytest.raises(UserError, match="is in use by a running process"):
        run.train(world, config, tiny.RECIPE)
    assert (config.run.dir / "exit.json").read_text() == before
    os.close(other)


def test_a_process_can_train_again_after_a_failure(tmp_path: Path) -> None:
    """As a notebook does. Nothing of the failed run is left: process group, lock, threads, accelerate's settings."""
    PartialState._reset_state()  # of other tests

    def fail(*_: object) -> None:
        raise RuntimeError("a bug in a recipe")

    def own_threads() -> set[threading.Thread]:
        """Without those of servers of other tests, which may still end, and of this test's time limit."""
        others = ("process_request_thread", "pytest_timeout")
        return {thread for thread in threading.enumerate() if not any(name in thread.name for name in others)}

    config, threads = tiny.config_in(tmp_path, ("train.steps", "2")), own_threads()
    for recipe, trained in ((replace(tiny.RECIPE, load=fail), False), (replace(tiny.RECIPE, loss=fail), False), (tiny.RECIPE, True)):
        with (
            contextlib.nullcontext() if trained else pytest.raises(RuntimeError, match="a bug"),
            run.process_group(config.log.trackers, config.run.dir) as world,
        ):
            assert run.train(world, config, recipe) == "finished"
        assert not torch.distributed.is_initialized() and own_threads() <= threads
        os.close(files.lock_folder(config.run.dir))
        assert PartialState._shared_state == {}


def test_settings_of_accelerate_from_before_a_run_stay(tmp_path: Path) -> None:
    config = tiny.config_in(tmp_path)
    own = Accelerator(cpu=True, gradient_accumulation_steps=3)
    with run.process_group(config.log.trackers, config.run.dir):
        pass
    assert own.state.initialized and own.gradient_accumulation_steps == 3
    GradientState._reset_state()


def test_one_of_several_ranks_keeps_its_connections_after_an_exception(tmp_path: Path, world: World) -> None:
    actions = list[str]()
    for size in (1, 2):
        with pytest.raises(UserError), run.finally_unless_others_wait(replace(world, size=size), lambda: actions.append("left")):
            raise UserError("no")
        assert actions == ["left"]
    with run.finally_unless_others_wait(replace(world, size=2), lambda: actions.append("left")):
        pass
    assert actions == ["left", "left"]


def test_a_run_in_good_order_replaces_an_older_record(tmp_path: Path) -> None:
    """A rank of an earlier launch, on a machine that was cut off, may write its record late. Of several failures the first is kept."""
    (tmp_path / "exit.json").write_text('{"reason": "failed", "message": "rank 3 is missing"}')
    run.write_exit_record(tmp_path, 4, "failed", RunFailure("a second one"))
    assert json.loads((tmp_path / "exit.json").read_text())["message"] == "rank 3 is missing"
    run.write_exit_record(tmp_path, 4, "finished", RunFailure(""))
    assert json.loads((tmp_path / "exit.json").read_text()).items() >= {"reason": "finished", "message": None, "step": 4}.items()


def test_a_curve_that_cannot_be_drawn_is_a_warning(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def undrawable(*_: object) -> None:
        raise TypeError("not a sequence of Unicode points")

    monkeypatch.setattr("overtone.finetune.training.run.draw_curve", undrawable)
    assert run.train(world, tiny.config_in(tmp_path, ("train.steps", "1")), tiny.RECIPE) == "finished"
    assert "warning: no loss.png (TypeError: not a sequence of Unicode points)" in capsys.readouterr().out


def test_an_exit_record_that_the_disk_refuses_is_a_warning(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = files.write_bytes

    def full(path: Path, data: bytes) -> None:
        if path.name == "exit.json":
            raise UserError(f"the disk is full: {path}")
        write(path, data)

    monkeypatch.setattr(files, "write_bytes", full)
    assert run.train(world, tiny.config_in(tmp_path, ("train.steps", "1")), tiny.RECIPE) == "finished"
    assert "exit.json cannot be written (the disk is full: " in capsys.readouterr().err


def test_a_bug_is_recorded_and_raised(tmp_path: Path, world: World) -> None:
    def broken(*_: object) -> dict[str, Term]:
        raise KeyError("ours")

    config = tiny.config_in(tmp_path)
    with pytest.raises(KeyError, match="ours"):
        run.train(world, config, replace(tiny.RECIPE, loss=broken))
    assert json.loads((config.run.dir / "exit.json").read_text())["reason"] == "failed"
    assert [event["event"] for event in read_log(config.run.dir / "log.jsonl")] == ["started", "stopped"]


def test_tracker_settings_are_flat(tmp_path: Path) -> None:
    settings = run.tracker_settings({**tiny.config_in(tmp_path, *tiny.LORA).model_dump(mode="json"), "empty": {}})
    assert settings["train.lr"] == 0.01 and settings["model.lora.rank"] == 3 and settings["checkpoint.asynchronous"] is True
    assert settings["log.trackers"] == "[]" and "empty" not in settings and settings["run.dir"] == str(tmp_path / "run")
    assert all(isinstance(value, int | float | bool | str) for value in settings.values())


def test_the_console_counts_in_the_recipes_unit(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    for name, recipe, unit in (("own", replace(tiny.RECIPE, unit="bytes"), "bytes"), ("default", tiny.RECIPE, "positions")):
        run.train(world, tiny.config_in(tmp_path / name, ("train.steps", "1")), recipe)
        out = capsys.readouterr().out
        assert f" {unit}/s  " in out and f"of about 300 {unit} each; " in out and "token" not in out
