"""CSM through the engine: the same numbers on 1, 2 and 4 ranks, resume, LoRA, and exact regeneration by the stock class after a launch.

`tests/recipes/csm/test_regeneration.py` is the quick twin of the last.
"""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from overtone.finetune import train as command
from overtone.finetune.exporting import export
from overtone.recipes.csm.model import tiny_checkpoint
from tests.launch.forked_ranks import run_ranks
from tests.launch.launching import launch, series
from tests.launch.same_steps import RunsOfCases, cases_on_ranks, compare_steps
from tests.recipes.csm.tiny_csm import call_stock, generate_greedily, load_stock, make_conversation, make_ready, make_rows, write_rows

SMALL = {"parallel.strategy": "fsdp", "train.micro_tokens": "60"}
CASES = {
    "whole": {"parallel.strategy": "fsdp", "train.micro_tokens": "2048"},
    "small": SMALL,
    "ddp": {**SMALL, "parallel.strategy": "ddp"},
    "recomputed": {**SMALL, "train.activation_checkpointing": "full"},
    "shared": {**SMALL, "options.depth_share": "0.4"},
    "lora": {**SMALL, "model.lora.rank": "4"},
    "frozen": {**SMALL, "options.trainable": "no_text_embedding"},
    "context": {**SMALL, "train.micro_tokens": "120", "options.context_turns": "1", "options.depth_share": "0.4"},
}
OTHER_STEPS = ("shared", "lora", "frozen", "context")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> RunsOfCases:
    folder = tmp_path_factory.mktemp("csm-same")
    rows = write_rows(folder / "train.jsonl", make_rows(["Ann", "Bob", "Cid"], frames=(9, 30)))
    return RunsOfCases(folder, "csm", CASES, {"model.source": tiny_checkpoint.build(folder / "tiny"), "data.train": rows})


def test_the_matrix_has_all_cases() -> None:
    assert len(cases_on_ranks(CASES)) == 24
    assert all(one != other for one, other in itertools.combinations(CASES.values(), 2))


@pytest.mark.parametrize(("world", "case"), cases_on_ranks(CASES, lambda case: case not in OTHER_STEPS))
def test_every_world_and_cut_gives_the_same_steps(runs: RunsOfCases, world: int, case: str) -> None:
    compare_steps(runs(world, case), runs(1, "whole"))


@pytest.mark.parametrize(("world", "case"), cases_on_ranks(CASES, OTHER_STEPS.__contains__))
def test_a_share_of_the_frames_lora_frozen_text_and_context_match_one_rank(runs: RunsOfCases, world: int, case: str) -> None:
    """Each micro-batch draws the same frames on any rank."""
    compare_steps(runs(world, case), runs(1, case))
    assert [step["loss"] for step in runs(1, case)] != [step["loss"] for step in runs(1, "small")]


@pytest.mark.slow
def test_accelerate_launch_on_one_and_two_processes_trains_the_same_conversations(tmp_path: Path) -> None:
    rows, series_of = make_conversation(["Ann", "Bob"], 8), {}
    for processes in (1, 2):
        folder = tmp_path / f"{processes}"
        base = tiny_checkpoint.build(folder / "tiny")
        how = ("--train.steps", 3, "--options.context_turns", 3, "--train.micro_tokens", 160, "--parallel.strategy", "ddp")
        printed = launch("ddp", processes, *words_for(folder, base, rows, *how))
        assert "context: 6 of 8 training clips follow 1 to 3 earlier clips of their recording" in printed
        series_of[processes] = series(folder / "run")
    compare_steps(series_of[2], series_of[1])


@pytest.mark.slow
@pytest.mark.ci
def test_the_first_loss_is_the_mean_over_all_targets_of_the_data(tmp_path: Path) -> None:
    """The step's loss, from a run of the engine, against the stock class clip by clip."""
    rows = make_rows(["Ann", "Bob"])
    base = tiny_checkpoint.build(tmp_path / "tiny")
    samples, stock = make_ready(tmp_path, base, rows).samples, load_stock(base)
    found = [call_stock(stock, sample) for sample in samples]
    frames = [len(sample["codes"]) for sample in samples]
    expected = sum(
        (each.backbone_loss.item() + each.depth_decoder_loss.item()) * count / sum(frames)
        for each, count in zip(found, frames, strict=True)
    )
    words = ["--recipe", "csm", "--model.source", base, "--data.train", tmp_path / "train.jsonl", "--run.dir", tmp_path / "engine"]
    sizes = ["--train.steps", 1, "--train.precision", "fp32", "--train.micro_tokens", 60, "--train.global_batch_tokens", 10**6]
    run_ranks(train_csm_words, [(1, ([*map(str, [*words, *sizes])],))], ["csm"], tmp_path / "witness")
    assert series(tmp_path / "engine")[0]["loss"] == pytest.approx(expected, abs=1e-5)


def train_csm_words(words: list[str]) -> None:
    assert command.main(words) == 0


@dataclass(frozen=True)
class LaunchedCsm:
    """A run on two processes that has memorized its clips, and its export."""

    base: Path
    rows: list[dict[str, Any]]
    run: Path
    exported: Path


FULL = ("--train.steps", 200, "--train.lr", "8e-3", "--checkpoint.every", 100)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> LaunchedCsm:
    folder, rows = tmp_path_factory.mktemp("csm-launched"), make_rows(["Ann", "Bob"], frames=(21, 34))
    base = tiny_checkpoint.build(folder / "tiny")
    launch("fsdp2", 2, *words_for(folder, base, rows, *FULL))
    return LaunchedCsm(base, rows, folder / "run", export.export(folder / "run", folder / "export"))


def words_for(folder: Path, base: Path, rows: list[dict[str, Any]], *more: object) -> list[object]:
    data = ["--model.source", base, "--data.train", write_rows(folder / "train.jsonl", rows), "--run.dir", folder / "run"]
    rest = ["--train.final_lr", 0.02, "--train.weight_decay", 0, "--train.global_batch_tokens", 1000]
    return ["finetune/train.py", "--recipe", "csm", "--config", "recipes/csm/debug.yaml", *data, *rest, *more]


def speaks(folder: Path, rows: list[dict[str, Any]]) -> list[list[list[int]]]:
    """What the stock class and the stock tokenizer, without our code, generate from an export for the rows."""
    from transformers import AutoTokenizer

    stock, tokenizer = load_stock(folder), AutoTokenizer.from_pretrained(folder)
    numbers = {voice["name"]: voice["id"] for voice in json.loads((folder / "voices.json").read_text())["speakers"]}
    prompts = [f"<|begin_of_text|>[{numbers[row['speaker'].lower()]}]{row['text']}<|end_of_text|>" for row in rows]
    return [generate_greedily(stock, torch.tensor(tokenizer(prompt, add_special_tokens=False)["input_ids"]), 60) for prompt in prompts]


@pytest.mark.slow
@pytest.mark.ci
def test_the_stock_class_regenerates_what_a_launched_run_learned(trained: LaunchedCsm) -> None:
    assert series(trained.run)[-1]["loss"] < 0.05
    assert speaks(trained.exported, trained.rows) == [row["audio_codes"] for row in trained.rows]
    stored, written = load_file(trained.base / "model.safetensors"), load_file(trained.exported / "model.safetensors")
    assert stored.keys() == written.keys()
    assert all(torch.equal(written[name], value) == name.startswith("codec_model.") for name, value in stored.items())
    saved = [name for path in trained.run.rglob("*.safetensors") for name in load_file(path)]
    assert len(saved) > 30 and not any("codec_model." in name for name in saved)


@pytest.mark.slow
@pytest.mark.ci
def test_a_run_resumes_from_its_checkpoint_with_the_same_numbers(trained: LaunchedCsm, tmp_path: Path) -> None:
    """The same command, after the last checkpoint was lost, repeats the second half."""
    folder = tmp_path / trained.run.parent.name  # part of the data's name
    shutil.copytree(trained.run, folder / "run")
    shutil.rmtree(max((folder / "run" / "checkpoints").iterdir()))
    words = words_for(folder, trained.base, trained.rows, *FULL, "--parallel.strategy", "fsdp")[1:]
    run_ranks(train_csm_words, [(2, ([*map(str, words)],))], ["csm"], tmp_path / "witness")
    again = [step["loss"] for step in series(folder / "run") if step["step"] > 100]
    assert [event["step"] for event in series(folder / "run", "resumed")] == [100]
    assert again[-1] == pytest.approx(series(trained.run)[-1]["loss"], abs=1e-6)


@pytest.mark.slow
def test_lora_on_an_export_learns_a_new_voice(trained: LaunchedCsm, tmp_path: Path) -> None:
    """On the trained model, since the heads of a random one cannot be confident about anything, and LoRA does not move them."""
    new = [{**row, "audio_codes": row["audio_codes"][::-1], "speaker": "Zoe"} for row in trained.rows[:1]]
    how = ("--train.steps", 200, "--train.lr", "1e-2", "--model.lora.rank", 8, "--checkpoint.every", 1000)
    launch("ddp", 2, *words_for(tmp_path, trained.exported, new, *how))
    assert speaks(export.export(tmp_path / "run", tmp_path / "merged"), new) == [row["audio_codes"] for row in new]
