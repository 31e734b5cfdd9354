"""From a config to a run that is ready: the right parameters are trained, and only a checkpoint of the same run is resumed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.data.cached_samples import read_head
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_logger import Events
from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.storage import files
from overtone.finetune.training import setup
from overtone.finetune.training.loop import Progress
from tests.byte_model.recipe import write_base
from tests.finetune import tiny


def test_a_fresh_run_starts_at_the_base(tmp_path: Path, world: World) -> None:
    training, progress = tiny.built(world, tiny.config_in(tmp_path))
    base = load_file(tmp_path / "base" / "model.safetensors")
    assert progress == Progress() and training.total == 6 and training.strategy == "ddp" and len(training.rows) == 20
    assert all(torch.equal(parameter.full_tensor(), base[name]) for name, parameter in training.model.named_parameters())
    assert training.model.training


def test_the_launch_environment_decides_what_the_config_leaves_open(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert tiny.built(world, tiny.config_in(tmp_path))[0].strategy == "fsdp"
    with pytest.raises(UserError, match="sets FSDP"):
        tiny.built(world, tiny.config_in(tmp_path, ("parallel.strategy", "ddp")))


def test_full_fine_tuning_or_adapters_are_set_up(tmp_path: Path, world: World) -> None:
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
    ("overrides", "message"),
    [
        ([("run.seed", "5")], "order was .*'seed': 0.*, now .*'seed': 5"),
        ([("data.window", "7")], "order was .*'window': 1024.*, now .*'window': 7"),
        ([("train.micro_tokens", "90")], "order was .*'micro_tokens': 100.*, now .*'micro_tokens': 90"),
        ([("train.global_batch_tokens", "200")], "order was .*300.*, now .*200"),
        (list(tiny.LORA), "lora was None, now .*'rank': 3"),
        ([("data.train", "other.jsonl")], "data was .*'rows': 20.*, now .*'rows': 8"),
        ([("model.source", "other")], r"base was .*base \(\w{12}…\), now .*other \(\w{12}…\): model.safetensors was changed"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_with_the_difference(
    tmp_path: Path, world: World, overrides: list[tuple[str, str]], message: str
) -> None:
    tiny.trained(world, tiny.config_in(tmp_path, ("train.steps", "1")))
    tiny.write_rows(tmp_path / "other.jsonl", tiny.texts(8, seed=3))
    write_base(tmp_path / "other", seed=3)
    here = [(key, str(tmp_path / value) if value.startswith("other") else value) for key, value in overrides]
    with pytest.raises(UserError) as caught:
        tiny.built(world, tiny.config_in(tmp_path, *here))
    lines = str(caught.value).splitlines()
    assert "step-00000001 belongs to a run with other data, base or order" in lines[0] and len(lines) == 3
    assert lines[2] == "Use the settings and files that it was made with, or choose another --run.dir"
    assert re.search(message, lines[1])


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.trained(world, tiny.config_in(tmp_path, ("train.steps", "1"), ("train.optimizer", "muon")))
    with pytest.raises(UserError, match=r"step-00000001 was saved with train\.optimizer: muon, .* resume with --train\.optimizer muon, or"):
        tiny.built(world, tiny.config_in(tmp_path))
    training, progress = tiny.built(world, tiny.config_in(tmp_path, ("train.optimizer", "muon"), ("train.momentum", "0.9")))
    assert progress.step == 1
    capsys.readouterr()
    setup.report_start(training, progress, Events(tmp_path / "run", world.accelerator, training.total, 1, {}))
    printed = capsys.readouterr().out
    assert "optimizer: muon for 1,800 parameters, adamw for " in printed and "train.momentum: 0.95 → 0.9" in printed, printed


def test_a_changed_base_under_the_same_name_is_noticed(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path, ("train.steps", "1"))
    tiny.trained(world, config)
    tensors = load_file(tmp_path / "base" / "model.safetensors")
    tensors["head.bias"][0] += 1
    save_file(tensors, tmp_path / "base" / "model.safetensors")
    with pytest.raises(UserError, match="base was"):
        tiny.built(world, config)


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "special_tokens_map.json"])
def test_another_tokenizer_or_template_is_refused_by_its_name(tmp_path: Path, world: World, name: str) -> None:
    config = tiny.config_in(tmp_path, ("train.steps", "1"))
    (tmp_path / "base" / name).write_text('{"a": 1, "b": 2}')
    tiny.trained(world, config)
    (tmp_path / "base" / name).write_text('{"a": 2, "b": 1}')
    with pytest.raises(UserError, match=rf"\n  base {tmp_path}/base: {name} was changed\n"):
        tiny.built(world, config)


def test_a_file_that_was_added_to_the_base_is_refused_by_its_name(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path, ("train.steps", "1"))
    tiny.trained(world, config)
    (tmp_path / "base" / "vocab.txt").write_text("a")
    with pytest.raises(
        UserError, match=rf"base {tmp_path}/base: vocab.txt was added \(move vocab.txt out of that folder\)\nUse the settings"
    ):
        tiny.built(world, config)


def test_fewer_steps_than_the_run_has_taken_are_refused(tmp_path: Path, world: World) -> None:
    tiny.trained(world, tiny.config_in(tmp_path, ("train.steps", "8")))
    with pytest.raises(UserError, match=r"^train.steps: 5, but .*step-00000008 is of step 8 already; give --train.steps 8 or more"):
        tiny.built(world, tiny.config_in(tmp_path, ("train.steps", "5")))
    with pytest.raises(UserError, match=r"^train.epochs: 1, which are 2 steps, but .*step-00000008 is of step 8 already"):
        tiny.built(world, tiny.config_in(tmp_path, ("train.steps", "null"), ("train.epochs", "1")))
    assert tiny.trained(world, tiny.config_in(tmp_path, ("train.steps", "8")))[1].step == 8


def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny.config_in(tmp_path, ("checkpoint.every", "3"))
    tiny.trained(world, config)
    newest = checkpoint.find(config.run.dir)
    (newest / "config.yaml").write_text("damaged")
    _, progress = tiny.built(world, config)
    assert progress.step == 3
    assert capsys.readouterr().err == f"warning: skipped {newest}: config.yaml does not match its digest\n"


def test_a_folder_has_one_run_and_it_sweeps_what_a_killed_one_left(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path)
    left = files.fresh_folder(checkpoint.folder_of(config.run.dir), "step-00000003")
    tiny.built(world, config)
    assert not left.exists()
    with pytest.raises(UserError, match=r"run is in use by a running process \(process \d+ on .* since .*\); wait for it"):
        setup.build(config, tiny.RECIPE, world)


def test_bad_rows_of_either_file_stop_the_run(tmp_path: Path, world: World) -> None:
    bad = tiny.write_rows(tmp_path / "val.jsonl", ["fine", "x"])
    with pytest.raises(UserError, match=r"1 invalid row:\s+.*val\.jsonl:2: text must hold"):
        tiny.built(world, tiny.config_in(tmp_path, ("data.val", str(bad))))
    long = tiny.write_rows(tmp_path / "long.jsonl", ["y" * 101])
    with pytest.raises(UserError, match=r"long\.jsonl:1: 101 positions do not fit train\.micro_tokens: 100"):
        tiny.built(world, tiny.config_in(tmp_path, ("data.val", str(long))))


def test_lengths_are_measured_again_for_other_options_or_another_base(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path)
    tiny.built(world, config)
    keys = [read_head(path)[0]["key"] for path in (config.run.dir / "cache").glob("*.index")]
    tiny.built(world, tiny.config_in(tmp_path, ("options.dropout", "0.2")))
    keys += [read_head(path)[0]["key"] for path in (config.run.dir / "cache").glob("*.index")]
    assert len(keys) == len(set(keys)) == 2


def test_what_changed_since_the_checkpoint_is_printed_logged_and_marked(
    tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    val = (("data.val", str(tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(4)))),)
    tiny.trained(world, tiny.config_in(tmp_path, ("train.steps", "3"), ("train.lr", "4e-3"), *val))
    tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(5))
    over = (("train.steps", "5"), ("train.lr", "1e-3"), ("parallel.strategy", "fsdp"), ("log.every", "2"), *val)
    training, progress = tiny.built(world, tiny.config_in(tmp_path, *over))
    capsys.readouterr()
    setup.report_start(training, progress, Events(tmp_path / "run", world.accelerator, training.total, 3, {}))
    _, title, *lines, note = capsys.readouterr().out.splitlines()
    assert title == "the configuration differs from that of step 3:"
    assert note == "the validation data has changed: checkpoints and evaluations from before are not compared with those from now on"
    assert [re.sub(r"\w{64}", "…", line) for line in lines] == [
        "  train.steps: 3 → 5",
        "  train.lr: 0.004 → 0.001",
        "  parallel.strategy: auto → fsdp (by rounding alone)",
        "  launch.strategy: ddp → fsdp (by rounding alone)",
        "  log.every: 1 → 2 (changes no number of the training)",
        "  launch.validation_data: … → … (changes no number of the training)",
    ]
    event = read_log(tmp_path / "run" / "log.jsonl")[-1]
    assert event["event"] == "resumed" and [f"  {change}" for change in event["changes"]] == lines
    assert event["marked"] == ["train.steps", "train.lr", "parallel.strategy", "launch.strategy"]


def test_a_config_that_cannot_be_read_stops_no_run(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    training, progress = tiny.trained(world, tiny.config_in(tmp_path, ("train.steps", "1")))
    (checkpoint.find(tmp_path / "run") / "config.yaml").write_text("[")
    setup.report_start(training, progress, Events(tmp_path / "run", world.accelerator, training.total, 1, {}))
    assert "warning: changes of the configuration since step 1 are not known: " in capsys.readouterr().out
    assert read_log(tmp_path / "run" / "log.jsonl")[-1]["event"] == "resumed"


def test_the_start_message_describes_the_run(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    training, progress = tiny.trained(world, tiny.config_in(tmp_path, *tiny.LORA))
    capsys.readouterr()
    training = replace(training, loaded=replace(training.loaded, remarks=("Bytes are learned.",)))
    events = Events(tmp_path / "run", world.accelerator, training.total, 0, {})
    setup.report_start(training, Progress(), events)
    setup.report_start(training, progress, events)
    first, reach, remark, second, *_ = capsys.readouterr().out.splitlines()
    assert "2,166 of 16,148 parameters train, ddp on 1 × cpu, fp32; 20 rows, 6 steps; a fresh start in" in first, first
    assert reach.startswith("LoRA adapts layers with ") and remark == "Bytes are learned." and second.endswith("resuming from step 6")
    assert [(event["event"], event["step"]) for event in read_log(tmp_path / "run" / "log.jsonl")][-2:] == [("started", 0), ("resumed", 6)]
