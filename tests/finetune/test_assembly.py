"""From a config to a run that is ready: the right parameters train, the right checkpoint is adopted, a stranger's is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from finetune import assembly, checkpoint, files
from finetune.errors import UserError
from finetune.events import Events, read_log
from finetune.loop import Progress
from finetune.rows import read_head
from finetune.world import World
from tests.byte_model.recipe import write_base
from tests.finetune import tiny


def test_a_fresh_run_starts_at_the_base(tmp_path: Path, world: World) -> None:
    training, progress = tiny.built(world, tiny.config_in(tmp_path))
    base = load_file(tmp_path / "base" / "model.safetensors")
    assert progress == Progress() and training.total == 6 and training.strategy == "ddp" and len(training.rows) == 20
    assert all(torch.equal(parameter.full_tensor(), base[name]) for name, parameter in training.model.named_parameters())
    assert training.model.training


def test_a_launch_environment_decides_where_the_config_does_not(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert tiny.built(world, tiny.config_in(tmp_path))[0].strategy == "fsdp"
    with pytest.raises(UserError, match="asks for FSDP"):
        tiny.built(world, tiny.config_in(tmp_path, ("parallel.strategy", "ddp")))


def test_full_or_adapters(tmp_path: Path, world: World) -> None:
    full, _ = tiny.built(world, tiny.config_in(tmp_path / "full"))
    lora, _ = tiny.built(world, tiny.config_in(tmp_path / "lora", *tiny.LORA))
    count = [sum(p.requires_grad for p in training.model.parameters()) for training in (full, lora)]
    assert count == [17, 12]
    assert full.identity["lora"] is None and lora.identity["lora"]["rank"] == 3


def test_the_same_run_is_adopted_on_another_strategy(tmp_path: Path, world: World) -> None:
    trained, progress = tiny.trained(world, tiny.config_in(tmp_path, ("train.steps", "3")))
    again, place = tiny.built(world, tiny.config_in(tmp_path, ("train.steps", "9"), ("parallel.strategy", "fsdp"), ("train.lr", "1e-3")))
    assert place == progress and again.strategy != trained.strategy
    for (name, before), (_, after) in zip(trained.model.named_parameters(), again.model.named_parameters(), strict=True):
        assert torch.equal(before.full_tensor(), after.full_tensor()), name


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([("run.seed", "5")], "order was .*'seed': 0.*, now .*'seed': 5"),
        ([("data.window", "7")], "order was .*'window': 1024.*, now .*'window': 7"),
        ([("train.micro_tokens", "90")], "order was .*'micro_tokens': 100.*, now .*'micro_tokens': 90"),
        ([("train.global_batch_tokens", "200")], "order was .*300.*, now .*200"),
        (list(tiny.LORA), "lora was None, now .*'rank': 3"),
        ([("data.train", "other.jsonl")], "data was .*'rows': 20.*, now .*'rows': 8"),
        ([("model.source", "other")], "base was .*'digest'.*, now .*other"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_the_difference_named(
    tmp_path: Path, world: World, overrides: list[tuple[str, str]], told: str
) -> None:
    tiny.trained(world, tiny.config_in(tmp_path, ("train.steps", "1")))
    tiny.write_rows(tmp_path / "other.jsonl", tiny.texts(8, seed=3))
    write_base(tmp_path / "other", seed=3)
    here = [(key, str(tmp_path / value) if value.startswith("other") else value) for key, value in overrides]
    with pytest.raises(UserError) as caught:
        tiny.built(world, tiny.config_in(tmp_path, *here))
    lines = str(caught.value).splitlines()
    assert "step-00000001 belongs to a run with other data, base or order" in lines[0] and len(lines) == 3
    assert lines[2] == "Run with what it was made with, or choose another --run.dir"
    assert re.search(told, lines[1])


def test_a_changed_base_under_the_same_name_is_noticed(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path, ("train.steps", "1"))
    tiny.trained(world, config)
    tensors = load_file(tmp_path / "base" / "model.safetensors")
    tensors["head.bias"][0] += 1
    save_file(tensors, tmp_path / "base" / "model.safetensors")
    with pytest.raises(UserError, match="base was"):
        tiny.built(world, config)


def test_a_damaged_newest_is_passed_over_aloud(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny.config_in(tmp_path, ("checkpoint.every", "3"))
    tiny.trained(world, config)
    newest = checkpoint.find(config.run.dir)
    (newest / "config.yaml").write_text("damaged")
    _, progress = tiny.built(world, config)
    assert progress.step == 3
    assert capsys.readouterr().err == f"warning: passed over {newest}: config.yaml is not what was written\n"


def test_a_folder_has_one_run_and_it_sweeps_what_a_killed_one_left(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path)
    left = files.fresh_folder(checkpoint.folder_of(config.run.dir), "step-00000003")
    tiny.built(world, config)
    assert not left.exists()
    with pytest.raises(UserError, match=r"run belongs to a run that is going on \(process \d+ on .* since .*\); wait for it"):
        assembly.build(config, tiny.RECIPE, world)


def test_bad_rows_of_either_file_stop_the_run(tmp_path: Path, world: World) -> None:
    bad = tiny.write_rows(tmp_path / "val.jsonl", ["fine", "x"])
    with pytest.raises(UserError, match=r"1 bad rows:\s+.*val\.jsonl:2: text must hold"):
        tiny.built(world, tiny.config_in(tmp_path, ("data.val", str(bad))))
    long = tiny.write_rows(tmp_path / "long.jsonl", ["y" * 101])
    with pytest.raises(UserError, match=r"long\.jsonl:1: 101 positions do not fit train\.micro_tokens: 100"):
        tiny.built(world, tiny.config_in(tmp_path, ("data.val", str(long))))


def test_lengths_are_measured_anew_for_other_options_or_another_base(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path)
    tiny.built(world, config)
    keys = [read_head(path)[0]["key"] for path in (config.run.dir / "cache").glob("*.index")]
    tiny.built(world, tiny.config_in(tmp_path, ("options.dropout", "0.2")))
    keys += [read_head(path)[0]["key"] for path in (config.run.dir / "cache").glob("*.index")]
    assert len(keys) == len(set(keys)) == 2


def test_the_introduction_says_what_will_happen(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    training, progress = tiny.built(world, tiny.config_in(tmp_path, *tiny.LORA))
    training = replace(training, loaded=replace(training.loaded, remarks=("Bytes are learned.",)))
    events = Events(tmp_path / "run", world.accelerator, training.total, 0, {})
    assembly.introduce(training, progress, events)
    assembly.introduce(training, Progress(step=4), events)
    first, remark, second, _ = capsys.readouterr().out.splitlines()
    assert "2,166 of 16,148 parameters train, ddp on 1 × cpu, fp32; 20 rows, 6 steps; a fresh start in" in first, first
    assert remark == "Bytes are learned." and second.endswith("going on from step 4")
    assert [(event["event"], event["step"]) for event in read_log(tmp_path / "run" / "log.jsonl")] == [("started", 0), ("resumed", 4)]
