"""`overtone.train`: in one process again and again, with the process left as it was; interrupts, errors, and what it returns."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import overtone
from overtone.finetune import train
from overtone.finetune.monitoring.stop_requests import StopRequests
from overtone.finetune.recipe import Batch, Term
from overtone.finetune.training import loop, run
from tests.finetune import tiny

RECIPE = str(tiny.FOLDER)


def make_settings(folder: Path, **more: object) -> dict[str, object]:
    """Settings of a run of four steps, which is evaluated and saved at every second one."""
    config = tiny.config_in(folder)
    return {
        "run.dir": folder / "run",
        "model.source": config.model.source,
        "data.train": config.data.train,
        "data.val": config.data.train,
        "train": {"steps": np.int64(4), "lr": np.float32(0.01)},
        "eval.every": 2,
        "checkpoint.every": 2,
        "log.trackers": [],
        **more,
    }


def describe_process() -> dict[str, Any]:
    """What a run must leave as it was."""
    gc.collect()
    return {
        "environ": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "folder": Path.cwd(),
        "handlers": [signal.getsignal(number) for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)],
        "wakeup": signal.set_wakeup_fd(-1),
        "group": torch.distributed.is_initialized(),
        "hooks": (sys.excepthook, threading.excepthook),
        "gradients": torch.is_grad_enabled(),
    }


def list_open_files() -> Counter[str]:
    """What the descriptors of this process name: files by path, sockets and pipes by kind."""
    names: Counter[str] = Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists the folder
            names[str(descriptor.readlink()).split(":[")[0]] += 1
    return names


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "draw_curve", lambda *_: None)  # takes longer than the training


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> overtone.TrainingRun:
    """The run of `make_settings`, without a stop."""
    return overtone.train(RECIPE, make_settings(tmp_path_factory.mktemp("first")))


@pytest.fixture
def same_process(first: overtone.TrainingRun) -> Iterator[None]:
    """Threads and files may end that an earlier test of this process had left; none may be added."""
    assert first  # what libraries open once stays open
    before = describe_process()
    threads, files = set(threading.enumerate()), list_open_files()
    yield
    assert describe_process() == before
    assert {thread for thread in threading.enumerate() if not thread.name.startswith("pytest_timeout")} <= threads
    assert list_open_files() <= files


def replace_recipe(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    monkeypatch.setattr(train, "load_recipe", lambda _: replace(tiny.RECIPE, **functions))


def call_at_step(monkeypatch: pytest.MonkeyPatch, wanted: int, action: Callable[[], object]) -> None:
    step = loop.train_step

    def act(*given: Any) -> dict[str, float]:
        if given[2] + 1 == wanted:
            action()
        return step(*given)

    monkeypatch.setattr(loop, "train_step", act)


@pytest.mark.usefixtures("same_process")
def test_a_process_trains_twice_with_the_same_losses(first: overtone.TrainingRun, tmp_path: Path) -> None:
    again = overtone.train(RECIPE, make_settings(tmp_path))
    assert [*first.losses] == [1, 2, 3, 4] and first.losses == again.losses and first.losses[1] > first.losses[4]
    assert [*first.evaluations] == [2, 4] and first.evaluations[4]["loss"] < first.evaluations[2]["loss"]
    assert (first.state, first.reason, first.step, first.total, first.best, first.recipe) == ("finished", "", 4, 4, 4, RECIPE)
    assert again.checkpoints == {step: tmp_path / "run" / "checkpoints" / f"step-{step:08d}" for step in (2, 4)}
    assert overtone.open_run(tmp_path / "run") == again
    assert "losses" not in repr(first), "a cell that ends with the run would show them all"


@pytest.mark.usefixtures("same_process")
def test_errors_are_exceptions_after_which_training_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(tmp_path)
    for wrong, message in (
        ({"train.lrr": 1}, r"settings\['train\.lrr'\]: unknown key train\.lrr; did you mean train\.lr\?"),
        ({"train": {"lr": "fast"}}, r"settings\['train'\]: train\.lr = 'fast': Input should be a valid number"),
        ({"model.lora": object()}, r"settings\['model\.lora'\] = <object .*> is not a valid config value; give a text, a path"),
        ({"data.train": tmp_path / "no.jsonl"}, r"data\.train: .*no\.jsonl does not exist"),
    ):
        with pytest.raises(overtone.UserError, match=message):
            overtone.train(RECIPE, {**settings, **wrong})
    with pytest.raises(overtone.UserError, match="known recipes: .*voice_clone"):
        overtone.train("voice_clown", settings)

    def fail(*_: object) -> dict[str, Term]:
        raise RuntimeError("a bug in a recipe")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="a bug in a recipe"):
        replace_recipe(patch, loss=fail)
        overtone.train(RECIPE, settings)
    failed = overtone.open_run(tmp_path / "run")
    assert (failed.state, failed.step, failed.losses, failed.best) == ("failed", 0, {}, None)
    assert overtone.train(RECIPE, settings).state == "finished"


def test_the_memory_of_a_run_that_failed_is_free_while_its_exception_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook keeps the last exception, and with it every variable of the functions that it left."""
    models = list[weakref.ref[nn.Module]]()

    def run_out(model: nn.Module, _: Batch) -> dict[str, Term]:
        models.append(weakref.ref(model))
        raise overtone.UserError("out of memory")

    replace_recipe(monkeypatch, loss=run_out)
    with pytest.raises(overtone.UserError) as kept:
        overtone.train(RECIPE, make_settings(tmp_path))
    gc.collect()
    assert str(kept.value) == "out of memory" and models[0]() is None


@pytest.mark.usefixtures("same_process")
def test_an_interrupt_saves_and_is_then_raised(first: overtone.TrainingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        send_at_step(patch, 3, signal.SIGINT)
        overtone.train(RECIPE, settings)
    stopped = overtone.open_run(tmp_path / "run")
    assert (stopped.state, stopped.reason, [*stopped.checkpoints]) == ("stopped", "by SIGINT on rank 0", [2, 3])
    assert overtone.train(RECIPE, settings).losses == first.losses, "the same call resumes it"


def send_at_step(monkeypatch: pytest.MonkeyPatch, wanted: int, number: signal.Signals) -> None:
    """Send a signal before a step, and wait until the thread of the run has seen it."""
    seen, record = threading.Event(), StopRequests.record_signal

    def record_and_tell(requests: StopRequests, name: str) -> None:
        record(requests, name)
        seen.set()

    def send() -> None:
        signal.raise_signal(number)
        assert seen.wait(60)

    monkeypatch.setattr(StopRequests, "record_signal", record_and_tell)
    call_at_step(monkeypatch, wanted, send)


@pytest.mark.usefixtures("same_process")
def test_another_signal_saves_and_then_has_the_effect_that_the_program_gave_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received = list[object]()
    before = signal.signal(signal.SIGTERM, lambda *_: received.append([*overtone.open_run(tmp_path / "run").checkpoints]))
    try:
        with monkeypatch.context() as patch:
            send_at_step(patch, 3, signal.SIGTERM)
            stopped = overtone.train(RECIPE, make_settings(tmp_path))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [[2, 3]], "it has saved first"
    assert (stopped.state, stopped.step) == ("stopped", 3)


@pytest.mark.usefixtures("same_process")
def test_a_stop_file_returns_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        call_at_step(patch, 3, (tmp_path / "run" / "STOP").touch)
        stopped = overtone.train(RECIPE, make_settings(tmp_path))
    assert (stopped.state, stopped.step, stopped.total) == ("stopped", 3, 4)


class Cell:
    """What a notebook puts in place of the standard streams: no descriptor, no terminal, and not all methods."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("on_thread", [False, True])
def test_it_trains_in_a_cell_of_a_notebook(on_thread: bool, tmp_path: Path) -> None:
    """In a running event loop, on its thread or on another one, and with streams that are no files."""

    async def run_cell() -> overtone.TrainingRun:
        settings = make_settings(tmp_path)
        return await asyncio.to_thread(overtone.train, RECIPE, settings) if on_thread else overtone.train(RECIPE, settings)

    shown, errors = Cell(), Cell()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):  # type: ignore[type-var]
        finished = asyncio.run(run_cell())
    lines = shown.text.splitlines()
    assert finished.state == "finished" and errors.text == ""
    assert any(line.startswith("step 4/4  loss ") for line in lines) and any("validation loss" in line for line in lines)
    assert "\r" not in shown.text and "\x1b" not in shown.text, "no line is updated in place"


def test_config_files_come_before_the_settings(tmp_path: Path) -> None:
    extra = tmp_path / "extra.yaml"
    extra.write_text("train: {steps: 1, lr: 0.5}\n")
    settings = {**make_settings(tmp_path), "train": {"lr": 0.25}}
    assert overtone.train(RECIPE, settings, config=str(extra)).total == 1
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [event["lr"] for event in events if event["event"] == "step"] == [0.25]
    with pytest.raises(overtone.UserError, match="--config none.yaml: no such file"):
        overtone.train(RECIPE, settings, config=[extra, Path("none.yaml")])


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(overtone.UserError, match="is not the folder of a run"):
        overtone.open_run(tmp_path)
    with pytest.raises(overtone.UserError, match="no such folder"):
        overtone.open_run(tmp_path / "none")
