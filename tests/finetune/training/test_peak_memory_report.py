"""Reports of memory: a GPU compared with the plan, the part that is larger than planned, and three keys that help."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from overtone.finetune.data.batching import MicroBatch
from overtone.finetune.distributed import sharding
from overtone.finetune.distributed.ddp_replication import ALIGNED
from overtone.finetune.distributed.process_group import World
from overtone.finetune.planning.memory import GIB, Memory
from overtone.finetune.training import peak_memory_report
from overtone.finetune.training.peak_memory_report import Used, compare_with_plan, suggest_remedies
from overtone.finetune.training.start_and_end_messages import describe_start
from overtone.finetune.training.step import make_loader
from tests.finetune import tiny

PLANNED = Memory(0, 0, 4 * GIB, 4 * GIB, 8 * GIB, 2 * GIB, 0, GIB // 100, 3 * GIB, GIB, 0, GIB)


def test_the_memory_is_compared_with_the_card_by_terms() -> None:
    text = peak_memory_report.compare_with_card(PLANNED, 80 * GIB, "NVIDIA H100")
    terms = "optimizer 8.0, masters (fp32) 4.0, gradients (fp32) 4.0, activations 3.0, gathered weights 2.0, overhead (est.) 1.0, loss 1.0"
    assert text == f"estimated peak 23.0 of 80.0 GiB of a NVIDIA H100 ({terms})"
    assert "will probably NOT FIT" in peak_memory_report.compare_with_card(PLANNED, 20 * GIB, "NVIDIA A4000")


def test_a_gpu_run_shows_its_memory(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(total_memory=8 * GIB, name="a card")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    training, progress = tiny.built(world, tiny.config_in(tmp_path))
    training = replace(training, world=replace(world, device=torch.device("cuda")))
    assert "  memory    estimated peak 1.0 of 8.0 GiB of a a card (overhead (est.) 1.0)" in describe_start(training, progress)

    def broken(*_: Any) -> Memory:
        raise KeyError("shape")

    monkeypatch.setattr(peak_memory_report, "plan_memory", broken)
    assert "  memory    no estimate (KeyError: 'shape')" in describe_start(training, progress)


def planned(**terms: float) -> Memory:
    names = (
        "frozen",
        "rollouts",
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


def test_three_keys_are_suggested_with_values(tmp_path: Path, world: World) -> None:
    config, longest = tiny.config_in(tmp_path, ("train.micro_tokens", "100")), 41
    batch = [
        "--train.micro_tokens 50 (now 100; it belongs to the order of the samples, so choose a new --run.dir)",
        "--train.activation_checkpointing full (now none; the same run can resume with it)",
    ]
    lora = "--model.lora '{rank: 16}' (another run: choose a new --run.dir)"
    assert suggest_remedies(config.model, config.train, config.parallel, world, longest, weights_first=False) == [*batch, lora]
    assert suggest_remedies(config.model, config.train, config.parallel, world, longest, weights_first=True) == [lora, *batch]
    (cut, *_) = suggest_remedies(config.model, config.train, config.parallel, world, 60, weights_first=False)
    assert cut.startswith("--train.micro_tokens 60 "), "no smaller than the longest sample"
    many = replace(world, size=8, device=torch.device("cuda"))
    first, second, third = suggest_remedies(config.model, config.train, config.parallel, many, longest, weights_first=True)
    assert first.startswith("--parallel.strategy fsdp") and second.startswith("--parallel.offload true") and third == lora
    small = tiny.config_in(tmp_path, *tiny.LORA, ("train.micro_tokens", str(longest)), ("train.activation_checkpointing", "full"))
    suggested = suggest_remedies(small.model, small.train, small.parallel, world, longest, weights_first=False)
    assert [line.split(" (")[0] for line in suggested] == [
        "--model.quantization nf4",
        "more or larger GPUs: see `overtone plan`",
    ]


@pytest.mark.parametrize(("strategy", "precision"), [("ddp", "fp32"), ("ddp", "bf16"), ("zero1", "fp32")])
def test_lasting_memory_is_counted_from_the_tensors(tmp_path: Path, world: World, strategy: str, precision: str) -> None:
    """Between two steps; and under `ddp` in the middle of one too, where a device runs out of memory."""
    chosen = (("train.steps", "1"), ("parallel.strategy", strategy), ("train.precision", precision))
    training, _ = tiny.trained(world, tiny.config_in(tmp_path, *chosen))
    sizes = [parameter.numel() for parameter in training.model.parameters()]
    without = 12 * sum(sizes) + 4 * len(sizes)
    gradients = 4 * (sum(sizes) if precision == "fp32" else sum(-(-size // ALIGNED) * ALIGNED for size in sizes) + len(sizes))
    if strategy == "zero1":
        assert peak_memory_report.count_lasting_bytes(training) == without
        return
    assert peak_memory_report.count_lasting_bytes(training) == without + gradients
    with closing(make_loader(training, training.rows)) as loader:
        batch = loader.batch(MicroBatch((0, 1), 0, 0))
    for last in (False, True):
        sharding.prepare_backward(training.model, "ddp", last)
        loss = torch.stack([term.sum for term in training.recipe.loss(training.model, batch).values()]).sum()
        assert peak_memory_report.count_lasting_bytes(training) == without + (0 if precision == "fp32" and not last else gradients)
        loss.backward()
        assert peak_memory_report.count_lasting_bytes(training) == without + gradients
