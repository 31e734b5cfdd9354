"""Answers during training come from a committed checkpoint, in a process that ends with the run and that the run never waits for."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.checkpointing.retention import BestBy
from overtone.finetune.config import Config, resolve
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_logger import Events
from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.monitoring.stop_requests import StopRequests
from overtone.finetune.recipe import Recipe
from overtone.finetune.training import generation_during_training
from overtone.finetune.training import run as training_run
from overtone.finetune.training.generation_during_training import Sampler
from overtone.finetune.training.loop import save_due
from overtone.finetune.training.sampling_process import Share
from overtone.recipes.llm_sft.recipe import RECIPE
from tests.finetune import tiny
from tests.finetune.training.waiting import ended, within
from tests.recipes.llm_sft import tiny_runs

PROMPTS = "['Who are you?', 'Good day.']"
ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")


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
    assert training_run.train(tracked, config, RECIPE) == "finished"
    (event,) = sampled(config, "sampled")
    assert event["step"] == 60
    assert {each["prompt"]: each["answer"] for each in event["answers"]} == dict(tiny_runs.CHATS)
    assert "step 60: 'Who are you?' → 'I am a machine.'" in capsys.readouterr().out
    assert not [path for path in (config.run.dir / "cache").iterdir() if path.name.startswith(".") and path.suffix != ".lock"]
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
    with Sampler(config, 60, events, is_main=True, device=CPU) as sampler:
        yield sampler, config


def commit(config: Config, step: int, **state: Any) -> Path:
    folder = checkpoint.folder_of(config.run.dir) / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps(tiny.state(step, **state)))
    (folder / "manifest.json").write_text("{}")
    return folder


def child_of(sampler: Sampler) -> int:
    assert sampler._child is not None
    return sampler._child._process.pid


def test_generation_starts_once_the_step_is_committed_and_never_waits(waiting: tuple[Sampler, Config]) -> None:
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


def test_the_checkpoint_in_use_survives_pruning(waiting: tuple[Sampler, Config]) -> None:
    sampler, config = waiting
    sampler.after_step(10)
    assert sampler._child is not None
    (checkpoint.folder_of(config.run.dir) / "step-00000010" / "state.json").unlink()
    assert checkpoint.read_state(sampler._child._folder / "step-00000010")["step"] == 10


def test_a_stop_ends_generation_at_once(waiting: tuple[Sampler, Config]) -> None:
    sampler, config = waiting
    sampler.after_step(10)
    pid = child_of(sampler)
    with StopRequests() as requests:
        os.kill(os.getpid(), signal.SIGTERM)
        assert within(100, lambda: requests.poll() is not None)
        sampler.finish(requests)
    assert not ended(pid)
    sampler.__exit__(None, None, None)
    assert ended(pid) and [event["step"] for event in sampled(config, "sampling stopped")] == [10]
    assert not [path for path in (config.run.dir / "cache").iterdir() if path.name.startswith(".") and path.suffix != ".lock"]
    sampler._child = None


# --- failure


@pytest.mark.ci
@pytest.mark.slow
def test_a_failed_generation_is_logged_and_stops_nothing(waiting: tuple[Sampler, Config], capsys: pytest.CaptureFixture[str]) -> None:
    sampler, config = waiting
    sampler._config = config.model_copy(update={"recipe": "nowhere"})
    commit(config, 20, recipe="nowhere")
    sampler.after_step(20)
    assert within(200, lambda: (sampler.after_step(21), sampler._child is None)[1])
    (failure,) = sampled(config, "sampling failed")
    assert failure["step"] == 20 and failure["problem"].startswith("error: --recipe nowhere: no recipe.py in")
    assert "warning: no answers of step 20: error: --recipe nowhere" in capsys.readouterr().out
    sampler.after_step(30)
    assert sampler._child is None


def test_a_full_disk_is_logged(waiting: tuple[Sampler, Config], monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, config = waiting

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(generation_during_training.files, "link_into", full)
    sampler.after_step(10)
    assert sampler._child is None and "No space left" in sampled(config, "sampling failed")[0]["problem"]


def test_only_the_main_rank_generates_and_only_if_configured(tmp_path: Path, world: World) -> None:
    config = config_in(tmp_path, ("log.trackers", "[]"))
    commit(config, 60)
    for asked, is_main in ((config, False), (config.model_copy(update={"sample": type(config.sample)()}), True)):
        with Sampler(asked, 60, Events(config.run.dir, world.accelerator, 60, 0, {}), is_main, CPU) as sampler:
            sampler.after_step(60)
            assert sampler._child is None


def test_a_checkpoint_is_saved_where_answers_are_due(tmp_path: Path) -> None:
    config = config_in(tmp_path, ("sample.every", "20"), ("checkpoint.every", "50"))
    assert [step for step in range(1, 101) if save_due(config.checkpoint, config.sample, step)] == [20, 40, 50, 60, 80, 100]


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        (tiny.RECIPE, (), "the recipe mine cannot answer prompts"),
        (RECIPE, (("sample.every", "null"),), "sample.prompts would never be answered"),
        (RECIPE, (("sample.prompts", "[]"),), "there are no prompts"),
    ],
)
def test_samples_that_could_not_be_made_are_refused(tmp_path: Path, recipe: Recipe, overrides: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        generation_during_training.check(config_in(tmp_path, *overrides).sample, BestBy(), "mine", recipe)
    none = config_in(tmp_path / "none", ("sample.every", "null"), ("sample.prompts", "[]"))
    generation_during_training.check(none.sample, BestBy(), "mine", recipe)


# --- on the GPU, where there is room


GIB = 2**30
DECODER = {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}


def test_the_cache_is_counted_of_all_decoders_of_a_config() -> None:
    """Of Qwen3-1.7B 114,688 bytes a position: 28 layers, keys and values, 8 heads of 128 numbers, 2 bytes each."""
    assert generation_during_training.cache_bytes({**DECODER, "hidden_size": 2048}) == 28 * 2 * 8 * 128 * 2 == 114_688
    plain = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    assert generation_during_training.cache_bytes(plain) == 2 * 2 * 4 * 16 * 2
    assert (
        generation_during_training.cache_bytes({"talker_config": {**DECODER, "code_predictor_config": plain}, "width": 3}) == 114_688 + 512
    )
    assert generation_during_training.cache_bytes({**plain, "num_key_value_heads": None}) == 2 * 2 * 4 * 16 * 2, "as Phi's config has it"
    assert generation_during_training.cache_bytes({"width": 64}) == 0


def test_the_gpu_memory_of_answering_is_estimated(tmp_path: Path) -> None:
    (tmp_path / "speech_tokenizer").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(DECODER))
    for name, size in (("model.safetensors", 1000), ("speech_tokenizer/model.safetensors", 500), ("runs/model.safetensors", 10**6)):
        (tmp_path / name).write_bytes(bytes(size))
    assert generation_during_training.bytes_on_gpu(tmp_path, (), 0) == GIB + 1500
    assert generation_during_training.bytes_on_gpu(tmp_path, ("speech_tokenizer",), 3) == GIB + int(1.5 * (1500 + 3 * 4096 * 114_688))


@pytest.mark.parametrize(("free", "total", "fits"), [(18, 80, True), (17, 80, False), (80, 80, True), (12, 20, True), (11, 20, False)])
def test_a_tenth_of_the_gpu_stays_free(free: int, total: int, fits: bool) -> None:
    assert generation_during_training.has_room(generation_during_training.GpuMemory("0", free * GIB, total * GIB), 10 * GIB) is fits


@pytest.mark.parametrize(
    ("index", "visible", "name"),
    [(0, None, "0"), (2, None, "2"), (1, "3, GPU-8f", "GPU-8f"), (0, "3", "3"), (None, "5", "5"), (0, "", "0")],
)
def test_the_gpu_is_named_as_a_new_process_sees_it(
    index: int | None, visible: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = torch.device("cuda") if index is None else torch.device("cuda", index)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda queried: (7, 9) if queried == device else None)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert generation_during_training.measure_gpu(device, environ) == generation_during_training.GpuMemory(name, 7, 9)


@pytest.fixture
def on_gpu(waiting: tuple[Sampler, Config], monkeypatch: pytest.MonkeyPatch) -> tuple[Sampler, list[int], Config]:
    """A run on a GPU whose free memory, in GiB, may be changed; samples may take 4 GiB."""
    sampler, config = waiting
    free = [30]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[0] * GIB, 80 * GIB))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6")
    sampler._device, sampler._needed = torch.device("cuda", 0), lambda: 4 * GIB
    return sampler, free, config


def environment_of(sampler: Sampler) -> dict[str, str]:
    raw = Path(f"/proc/{child_of(sampler)}/environ").read_bytes().decode()
    return dict(each.split("=", 1) for each in raw.split("\0") if each)


def test_with_room_samples_are_made_on_the_gpu_of_the_run(
    on_gpu: tuple[Sampler, list[int], Config], capsys: pytest.CaptureFixture[str]
) -> None:
    sampler, _, _ = on_gpu
    sampler.after_step(10)
    assert sampler._child is not None and sampler._child.share == Share("6", 0.05)
    assert within(100, lambda: environment_of(sampler).get("CUDA_VISIBLE_DEVICES") == "6")
    assert "samples are generated on GPU 6, beside the steps: they need up to 4.0 GiB; 30.0 of 80.0 GiB are free" in capsys.readouterr().out


def test_without_room_they_are_made_on_the_cpu_which_is_reported_once(
    on_gpu: tuple[Sampler, list[int], Config], capsys: pytest.CaptureFixture[str]
) -> None:
    sampler, free, config = on_gpu
    shares = []
    for step, gib in ((10, 11), (20, 10), (30, 30), (40, 29), (50, 11)):
        commit(config, step, recipe="nowhere") if step > 10 else None
        free[0] = gib
        sampler.after_step(step)
        assert sampler._child is not None
        shares.append(sampler._child.share is not None)
        sampler._child.close()
        sampler._child = None
    assert shares == [False, False, True, True, False]
    printed = capsys.readouterr().out
    assert printed.count("samples are generated on") == 2
    assert (
        "samples are generated on one CPU core: on GPU 6 they need up to 4.0 GiB; 11.0 of 80.0 GiB are free, "
        "of which 10% are reserved for training"
    ) in printed


@pytest.mark.ci
@pytest.mark.slow
def test_samples_that_fail_on_the_gpu_are_generated_again_on_the_cpu(
    on_gpu: tuple[Sampler, list[int], Config], capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no GPU here, so the share that the process is to keep to cannot be set."""
    sampler, _, config = on_gpu
    sampler._config = config.model_copy(update={"recipe": "nowhere"})
    commit(config, 20, recipe="nowhere")
    sampler.after_step(20)
    assert sampler._child is not None and sampler._child.share is not None
    assert within(200, lambda: (sampler.advance(), sampler._child is None or sampler._child.share is None)[1])
    (moved,) = sampled(config, "sampling moved")
    assert moved["step"] == 20 and "warning: samples of step 20 failed on GPU 6, the CPU takes over: " in capsys.readouterr().out
    assert sampler._child is not None and sampler._child.step == 20
    assert within(200, lambda: (sampler.advance(), sampler._child is None)[1])
    assert [event["step"] for event in sampled(config, "sampling failed")] == [20], "no recipe on the CPU either, and that is the end of it"


def test_a_share_that_is_not_known_leaves_samples_on_the_cpu(
    on_gpu: tuple[Sampler, list[int], Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sampler, _, _ = on_gpu
    sampler._needed = lambda: generation_during_training.bytes_on_gpu(tmp_path / "gone", (), 1)
    sampler.after_step(10)
    assert sampler._child is not None and sampler._child.share is None
    assert "samples are generated on one CPU core: the GPU memory that they need is not known (" in capsys.readouterr().out
