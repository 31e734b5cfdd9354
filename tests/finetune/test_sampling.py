"""Answers on the way come from a committed checkpoint, in a process that no run waits for and that no run leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finetune import checkpoint, sampling, train
from finetune.config import Config, resolve
from finetune.errors import UserError
from finetune.events import Events, read_log
from finetune.guards import StopRequests
from finetune.loop import save_due
from finetune.recipe import Recipe
from finetune.sampling import Sampler
from finetune.world import World
from recipes.llm_sft.recipe import RECIPE
from tests.finetune import tiny
from tests.recipes.llm_sft import tiny_runs

PROMPTS = "['Who are you?', 'Good day.']"
ROOT = Path(__file__).parents[2]


def config_in(folder: Path, *overrides: tuple[str, str]) -> Config:
    tiny_runs.write_base(folder / "base")
    rows = "".join(json.dumps(row) + "\n" for row in tiny_runs.rows())
    (folder / "chats.jsonl").write_text(rows)
    own = {
        "run.dir": folder / "run",
        "model.source": folder / "base",
        "data.train": folder / "chats.jsonl",
        "train.precision": "fp32",
        "train.lr": "1e-2",
        "train.global_batch_tokens": 60,
        "train.micro_tokens": 90,
        "train.steps": 60,
        "sample.prompts": PROMPTS,
        "sample.every": 60,
    }
    return resolve("llm_sft", RECIPE.Options, [], [(key, str(value)) for key, value in {**own, **dict(overrides)}.items()])


def sampled(config: Config, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_log(config.run.dir / "log.jsonl") if event["event"] == kind]


# --- a real run


def test_answers_of_a_run_are_in_its_log_its_console_and_tensorboard(
    tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_in(tmp_path)
    tracked = replace(world, accelerator=type(world.accelerator)(cpu=True, log_with="tensorboard", project_dir=str(config.run.dir)))
    assert train.train_in(tracked, config, RECIPE) == "finished"
    (told,) = sampled(config, "sampled")
    assert told["step"] == 60
    assert {each["prompt"]: each["answer"] for each in told["answers"]} == dict(tiny_runs.CHATS)
    assert "step 60: 'Who are you?' → 'I am a machine.'" in capsys.readouterr().out
    assert not [path for path in (config.run.dir / "cache").iterdir() if path.name.startswith(".")]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(config.run.dir / "tracking"))
    board.Reload()
    (*_, last) = board.Tensors("samples/1/text_summary")
    assert last.step == 60 and b"    I am a machine." in last.tensor_proto.string_val[0]


# --- a process that never answers


@pytest.fixture
def waiting(tmp_path: Path, world: World) -> Iterator[tuple[Sampler, Config]]:
    """A run whose recipe takes forever, with its step 10 committed."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "recipe.py").write_text("import time\ntime.sleep(600)\n")
    config = config_in(tmp_path, ("sample.every", "10"), ("log.trackers", "[]"))
    commit(config, 10, recipe=str(tmp_path / "slow"))
    events = Events(config.run.dir, world.accelerator, 60, 0, {})
    with Sampler(config, 60, events, is_main=True) as sampler:
        yield sampler, config


def commit(config: Config, step: int, **state: Any) -> Path:
    folder = checkpoint.folder_of(config.run.dir) / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps(tiny.state(step, **state)))
    return folder


def child_of(sampler: Sampler) -> int:
    assert sampler._child is not None
    return sampler._child._process.pid


def ended(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True


def within(seconds: float, happens: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not happens() and time.monotonic() < deadline:
        time.sleep(0.05)
    return happens()


def test_it_begins_once_the_step_is_committed_and_never_waits(waiting: tuple[Sampler, Config]) -> None:
    sampler, config = waiting
    for step in range(1, 10):
        sampler.after_step(step)
    assert sampler._child is None
    sampler.after_step(10)
    pid = child_of(sampler)
    sampler.after_step(11)
    assert child_of(sampler) == pid and not ended(pid)
    for step in range(12, 31):
        sampler.after_step(step)
    assert [event["step"] for event in sampled(config, "sampling passed over")] == [20], "30 is the one to come"


def test_an_uncommitted_step_is_waited_for_at_later_steps(waiting: tuple[Sampler, Config]) -> None:
    sampler, config = waiting
    sampler.after_step(20)
    assert sampler._child is None
    commit(config, 20, recipe="nowhere")
    sampler.after_step(21)
    assert child_of(sampler)


def test_its_checkpoint_outlives_pruning(waiting: tuple[Sampler, Config]) -> None:
    sampler, config = waiting
    sampler.after_step(10)
    assert sampler._child is not None
    (checkpoint.folder_of(config.run.dir) / "step-00000010" / "state.json").unlink()
    assert checkpoint.read_state(sampler._child._folder / "step-00000010")["step"] == 10


def test_a_stop_ends_it_at_once(waiting: tuple[Sampler, Config]) -> None:
    sampler, config = waiting
    sampler.after_step(10)
    pid = child_of(sampler)
    with StopRequests() as requests:
        os.kill(os.getpid(), signal.SIGTERM)
        assert within(20, lambda: requests.asked() is not None)
        sampler.finish(requests)
    assert not ended(pid)
    sampler.__exit__(None, None, None)
    assert ended(pid) and [event["step"] for event in sampled(config, "sampling stopped")] == [10]
    assert not [path for path in (config.run.dir / "cache").iterdir() if path.name.startswith(".")]
    sampler._child = None


def test_a_killed_run_takes_it_along(waiting: tuple[Sampler, Config]) -> None:
    script = f"""
import os, sys, time
from pathlib import Path
from finetune.sampling import _Child
child = _Child(10, Path({str(checkpoint.folder_of(waiting[1].run.dir) / "step-00000010")!r}), "nowhere", ("x",))
print(child._process.pid, flush=True)
time.sleep(600)
"""
    run = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    assert not ended(pid)
    run.kill()
    run.communicate()
    assert within(60, lambda: ended(pid))


# --- failure


def test_what_goes_wrong_is_told_and_stops_nothing(waiting: tuple[Sampler, Config], capsys: pytest.CaptureFixture[str]) -> None:
    sampler, config = waiting
    sampler._config = config.model_copy(update={"recipe": "nowhere"})
    commit(config, 20, recipe="nowhere")
    sampler.after_step(20)
    assert within(60, lambda: (sampler.after_step(21), sampler._child is None)[1])
    (failure,) = sampled(config, "sampling failed")
    assert failure["step"] == 20 and failure["problem"].startswith("error: --recipe nowhere: no recipe.py in")
    assert "warning: no answers of step 20: error: --recipe nowhere" in capsys.readouterr().out
    sampler.after_step(30)
    assert sampler._child is None


def test_a_disk_that_gives_no_room_is_told(waiting: tuple[Sampler, Config], monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, config = waiting

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sampling.files, "link_into", full)
    sampler.after_step(10)
    assert sampler._child is None and "No space left" in sampled(config, "sampling failed")[0]["problem"]


def test_only_the_main_rank_and_only_if_asked(tmp_path: Path, world: World) -> None:
    config = config_in(tmp_path, ("log.trackers", "[]"))
    commit(config, 60)
    for asked, is_main in ((config, False), (config.model_copy(update={"sample": type(config.sample)()}), True)):
        with Sampler(asked, 60, Events(config.run.dir, world.accelerator, 60, 0, {}), is_main) as sampler:
            sampler.after_step(60)
            assert sampler._child is None


def test_a_checkpoint_is_made_where_answers_are_due(tmp_path: Path) -> None:
    config = config_in(tmp_path, ("sample.every", "20"), ("checkpoint.every", "50"))
    assert [step for step in range(1, 101) if save_due(config, step)] == [20, 40, 50, 60, 80, 100]


def test_the_process_is_no_part_of_the_world() -> None:
    launched = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "x", "FSDP_VERSION": "2", "ACCELERATE_USE_FSDP": "true"}
    found = sampling.alone({**launched, "HOME": "/root", "LOCAL_SETTING": "kept", "OMP_NUM_THREADS": "16"})
    assert found == {"HOME": "/root", "LOCAL_SETTING": "kept", **sampling.ALONE}


@pytest.mark.parametrize(
    ("recipe", "overrides", "told"),
    [
        (tiny.RECIPE, (), "has no answers to sample"),
        (RECIPE, (("sample.every", "null"),), "sample.prompts would never be answered"),
        (RECIPE, (("sample.prompts", "[]"),), "there is nothing to answer"),
    ],
)
def test_samples_that_could_not_be_made_are_refused(tmp_path: Path, recipe: Recipe, overrides: tuple[Any, ...], told: str) -> None:
    with pytest.raises(UserError, match=told):
        sampling.check(config_in(tmp_path, *overrides), recipe)
    sampling.check(config_in(tmp_path / "none", ("sample.every", "null"), ("sample.prompts", "[]")), recipe)
