"""An out-of-memory error becomes the error of the run, whose message explains it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.finetune.distributed.process_group import World
from overtone.finetune.planning.memory import GIB
from overtone.finetune.training import loop, peak_memory_report, run
from overtone.finetune.training.out_of_memory import MemoryShortError, explain_out_of_memory, parse_failed_bytes
from overtone.finetune.training.peak_memory_report import Used
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
    monkeypatch.setattr(peak_memory_report, "measure_memory", lambda wanted, *_: Used(wanted, GIB, 60 * GIB, 3 * GIB, 80 * GIB))
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

    monkeypatch.setattr(peak_memory_report, "estimate_run", unplannable)
    words = r"(?s)Tried to allocate 2.50 GiB.*no plan available \(KeyError: 'shape'\).*What helps:"
    with pytest.raises(MemoryShortError, match=words), explain_out_of_memory(tiny.config_in(tmp_path), tiny.RECIPE, world):
        raise torch.OutOfMemoryError(CUDA)


def test_another_error_stays_what_it_is(tmp_path: Path, world: World) -> None:
    with pytest.raises(RuntimeError, match="^shapes"), explain_out_of_memory(tiny.config_in(tmp_path), tiny.RECIPE, world):
        raise RuntimeError("shapes do not fit")
