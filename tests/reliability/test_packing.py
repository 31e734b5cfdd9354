"""Packed chats on any number of processes are the same run; killed and resumed, it is the same run bit by bit."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.recipe import find_recipe
from overtone.recipes.llm_sft import toy_chats
from overtone.recipes.llm_sft.model import tiny_checkpoint
from tests.reliability import victims

STEPS, EVERY = 12, 3
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packing")
    tiny_checkpoint.build(folder / "base")
    toy_chats.write_task(folder, 260, seed=0)
    return folder


def arguments(data: Path, run: Path, *more: object) -> list[str]:
    """Steps of several ragged micro-batches, in windows of which the run sees many."""
    config = find_recipe("llm_sft") / "debug.yaml"
    given = {
        "--recipe": "llm_sft", "--config": config, "--model.source": data / "base", "--data.train": data / "train.jsonl",
        "--data.val": data / "val.jsonl", "--data.window": 40, "--train.micro_tokens": 160, "--train.global_batch_tokens": 700,
        "--train.steps": STEPS, "--train.lr": 1e-3, "--checkpoint.every": EVERY, "--eval.every": 6, "--log.trackers": "[]",
        "--run.dir": run,
    }  # fmt: skip
    return [str(word) for pair in given.items() for word in pair] + [str(word) for word in more]


@pytest.fixture(scope="module")
def on_two(data: Path) -> Path:
    victims.finish(data / "witness-2", 2, arguments(data, data / "on-2", "--parallel.strategy", "fsdp"))
    return data / "on-2"


@pytest.mark.parametrize("world", [1, 4])
def test_another_number_of_processes_gives_the_same_losses(world: int, data: Path, on_two: Path) -> None:
    run = data / f"on-{world}"
    victims.finish(data / f"witness-{world}", world, arguments(data, run, "--parallel.strategy", "fsdp" if world > 1 else "ddp"))
    found, expected = victims.losses(run), victims.losses(on_two)
    assert len(found) == len(expected) == STEPS and found[-1][1] < 0.75 * found[0][1], "it learns"
    for (step, loss, norm), (other_step, other_loss, other_norm) in zip(found, expected, strict=True):
        assert step == other_step
        assert loss == pytest.approx(other_loss, abs=1e-5) and norm == pytest.approx(other_norm, rel=1e-4)
    evaluations = [[event["val/loss"] for event in victims.events(each, "evaluation")] for each in (run, on_two)]
    assert evaluations[0] == pytest.approx(evaluations[1], abs=1e-5) and len(evaluations[0]) == 2


def test_tensor_parallelism_with_activation_checkpointing_gives_the_same_losses(data: Path, on_two: Path) -> None:
    """Samples of a row are told apart in a rank's own heads, and a second time in the backward pass."""
    run = data / "shared"
    more = ("--parallel.strategy", "fsdp", "--parallel.tensor", 2, "--train.activation_checkpointing", "full")
    victims.finish(data / "witness-shared", 2, arguments(data, run, *more))
    assert [loss for _, loss, _ in victims.losses(run)] == pytest.approx([loss for _, loss, _ in victims.losses(on_two)], abs=1e-5)


def test_every_step_is_packed(data: Path, on_two: Path) -> None:
    steps = victims.rows(data / "witness-2")
    assert max(len(micro) for ranks in steps.values() for turns in ranks for micro in turns) >= 3
    assert len({sum(len(turns) for turns in ranks) for ranks in steps.values()}) > 1, "steps of other sizes"
    assert victims.weights(on_two)


def test_killed_and_resumed_is_bit_identical(data: Path, on_two: Path) -> None:
    run, witness = data / "killed", data / "witness-killed"
    asked = arguments(data, run, "--parallel.strategy", "fsdp")
    for until in (EVERY + 1, 2 * EVERY + 2):
        ranks = victims.start(witness, 2, asked)
        deadline = time.monotonic() + 200
        while read_step(run) < until:
            assert all(process.is_alive() for process in ranks) and time.monotonic() < deadline, victims.said(witness)
            time.sleep(0.005)
        assert victims.kill(ranks) == 2, "the kill came too late"
    committed, _ = checkpoint.find_newest_valid(run)
    assert committed is None or checkpoint.read_state(committed)["step"] < STEPS
    victims.finish(witness, 2, asked)
    assert len(victims.events(run, "resumed")) >= 1
    assert victims.losses(run) == victims.losses(on_two)
    assert victims.rows(witness) == victims.rows(data / "witness-2")
    assert victims.weights(run) == victims.weights(on_two)


def read_step(run: Path) -> int:
    """The last step that was logged."""
    return max((step for step, *_ in victims.losses(run)), default=0) if (run / "log.jsonl").is_file() else 0
