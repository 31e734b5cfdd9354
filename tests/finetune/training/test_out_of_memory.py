"""An out-of-memory error is explained: the part that is larger than planned, and three keys that help."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.finetune.data.batching import MicroBatch
from overtone.finetune.distributed import sharding
from overtone.finetune.distributed.ddp_replication import ALIGNED
from overtone.finetune.distributed.process_group import World
from overtone.finetune.planning.memory import GIB, Memory
from overtone.finetune.training import loop, out_of_memory, run
from overtone.finetune.training.out_of_memory import (
    MemoryShortError,
    Used,
    compare_with_plan,
    explain_out_of_memory,
    parse_failed_bytes,
    suggest_remedies,
)
from overtone.finetune.training.step import make_loader
from tests.finetune import tiny

CUDA = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.2 GiB is free.\nSee documentation"
)
CPU = "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 400 bytes."


@pytest.mark.parametrize(
    ("problem", "wanted"), [(CUDA, 2.5 * GIB), (CPU, 400), ("Tried to allocate 20.00 MiB", 20 * 2**20), ("CUDA error: out of memory", 0)]
)
def test_the_requested_size_is_read_from_the_error(problem: str, wanted: float) -> None:
    assert parse_failed_bytes(problem) == wanted


def planned(**terms: float) -> Memory:
    names = (
        "frozen",
        "masters",
        "gradients",
        "optimizer",
        "gathered",
        "unreduced",
        "reducing",
        "activations",
        "loss",
        "working",
        "overhead",
    )
    return Memory(**{name: int(terms.get(name, 0) * GIB) for name in names})


def used(lasting: float, passing: float, outside: float) -> Used:
    return Used(0, *(int(size * GIB) for size in (lasting, passing, outside, 80)))


PLAN = planned(masters=20, optimizer=20, activations=10, loss=5, overhead=3)


@pytest.mark.parametrize(
    ("found", "larger"),
    [
        (used(40, 35, 3), "activations, loss and gathered weights: 35.00 GiB; planned: 15.00 GiB, LARGER than planned"),
        (used(60, 15, 3), "weights, gradients and optimizer: 60.00 GiB; planned: 40.00 GiB, LARGER than planned"),
        (used(40, 15, 24), "outside of tensors: 24.00 GiB; planned: 3.00 GiB, LARGER than planned"),
    ],
)
def test_the_part_that_is_larger_is_named(found: Used, larger: str) -> None:
    lines = [line.strip() for line in compare_with_plan(found, PLAN)]
    assert [line for line in lines if "LARGER" in line] == [larger]
    assert ("see nvidia-smi" in lines[-1]) == larger.startswith("outside")


def test_if_no_part_is_larger_than_planned_the_largest_is_named() -> None:
    last = list(compare_with_plan(used(40, 15, 3), planned(masters=20, optimizer=20, activations=38, overhead=4)))[-1]
    assert last == "  as planned, and the plan needs 82.00 GiB of 80.00 GiB; its largest term is activations, 38.00 GiB"
    assert "the plan" not in " ".join(compare_with_plan(used(40, 15, 3), None))


def test_three_keys_are_suggested_with_values(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    training, _ = tiny.built(world, tiny.config_in(tmp_path, ("train.micro_tokens", "100")))
    longest = int(training.rows.lengths.max())
    batch = [
        f"--train.micro_tokens {max(50, longest)} (now 100; it belongs to the order of the samples, so choose a new --run.dir)",
        "--train.activation_checkpointing full (now none; the same run can resume with it)",
    ]
    lora = "--model.lora '{rank: 16}' (another run: choose a new --run.dir)"
    assert suggest_remedies(training.config, world, training, weights_first=False) == [*batch, lora]
    assert suggest_remedies(training.config, world, training, weights_first=True) == [lora, *batch]
    many = replace(world, size=8, device=torch.device("cuda"))
    first, second, third = suggest_remedies(training.config, many, training, weights_first=True)
    assert first.startswith("--parallel.strategy fsdp") and second.startswith("--parallel.offload true") and third == lora
    small = tiny.config_in(tmp_path, *tiny.LORA, ("train.micro_tokens", str(longest)), ("train.activation_checkpointing", "full"))
    assert [line.split(" (")[0] for line in suggest_remedies(small, world, training, weights_first=False)] == [
        "--model.quantization nf4",
        "more or larger GPUs: see `overtone plan`",
    ]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(CUDA), RuntimeError(CPU)])
def test_a_run_without_memory_leaves_an_exit_record(
    error: Exception, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = loop.train_step

    def third_finds_no_room(training: Any, turns: Any, number: int, *rest: Any) -> dict[str, float]:
        if number == 2:
            raise error
        return step(training, turns, number, *rest)

    monkeypatch.setattr(loop, "train_step", third_finds_no_room)
    monkeypatch.setattr(out_of_memory, "measure_memory", lambda wanted, *_: replace(used(1, 60, 3), wanted=wanted))
    config = tiny.config_in(tmp_path)
    with pytest.raises(MemoryShortError) as caught:
        run.train(world, config, tiny.RECIPE)
    text = str(caught.value)
    assert text.startswith(f"out of memory on rank 0 (cpu): {str(error).splitlines()[0]}\n") and "documentation" not in text
    assert "activations, loss and gathered weights: 60.00 GiB; planned: 0.00 GiB, LARGER than planned" in text
    assert text.count("\n  --") == 3 and "\nWhat helps:\n  --train.micro_tokens 50 " in text
    word = json.loads((config.run.dir / "exit.json").read_text())
    assert (word["reason"], word["rank"], word["step"]) == ("out of memory", 0, 2) and text in word["message"]


def test_missing_memory_for_the_weights_is_explained_too(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError(CUDA)

    monkeypatch.setattr("overtone.finetune.modeling.loading.materialise", full)
    config = tiny.config_in(tmp_path)
    with pytest.raises(MemoryShortError, match=r"(?s)CUDA out of memory.*the plan: weights, gradients and optimizer .*What helps:\n  --"):
        run.train(world, config, tiny.RECIPE)
    assert json.loads((config.run.dir / "exit.json").read_text())["reason"] == "out of memory"


def test_without_a_plan_the_error_is_still_explained(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def unplannable(*_: object) -> None:
        raise KeyError("shape")

    monkeypatch.setattr(out_of_memory, "estimate_run", unplannable)
    words = r"(?s)Tried to allocate 2.50 GiB.*no plan available \(KeyError: 'shape'\).*What helps:"
    with pytest.raises(MemoryShortError, match=words), explain_out_of_memory(tiny.config_in(tmp_path), tiny.RECIPE, world):
        raise torch.OutOfMemoryError(CUDA)


def test_another_error_stays_what_it_is(tmp_path: Path, world: World) -> None:
    with pytest.raises(RuntimeError, match="^shapes"), explain_out_of_memory(tiny.config_in(tmp_path), tiny.RECIPE, world):
        raise RuntimeError("shapes do not fit")


@pytest.mark.parametrize(("strategy", "precision"), [("ddp", "fp32"), ("ddp", "bf16"), ("zero1", "fp32")])
def test_lasting_memory_is_counted_from_the_tensors(tmp_path: Path, world: World, strategy: str, precision: str) -> None:
    """Between two steps; and under `ddp` in the middle of one too, where a device runs out of memory."""
    chosen = (("train.steps", "1"), ("parallel.strategy", strategy), ("train.precision", precision))
    training, _ = tiny.trained(world, tiny.config_in(tmp_path, *chosen))
    sizes = [parameter.numel() for parameter in training.model.parameters()]
    without = 12 * sum(sizes) + 4 * len(sizes)
    gradients = 4 * (sum(sizes) if precision == "fp32" else sum(-(-size // ALIGNED) * ALIGNED for size in sizes) + len(sizes))
    if strategy == "zero1":
        assert out_of_memory.count_lasting_bytes(training) == without
        return
    assert out_of_memory.count_lasting_bytes(training) == without + gradients
    with closing(make_loader(training, training.rows)) as loader:
        batch = loader.batch(MicroBatch((0, 1), 0, 0))
    for last in (False, True):
        sharding.prepare_backward(training.model, "ddp", last)
        loss = torch.stack([term.sum for term in training.recipe.loss(training.model, batch).values()]).sum()
        assert out_of_memory.count_lasting_bytes(training) == without + (0 if precision == "fp32" and not last else gradients)
        loss.backward()
        assert out_of_memory.count_lasting_bytes(training) == without + gradients
