"""Evaluation is the plain mean over all rows."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from overtone.finetune.data import batching
from overtone.finetune.distributed.process_group import World
from overtone.finetune.monitoring.run_logger import Events
from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.monitoring.stop_requests import StopRequests
from overtone.finetune.training import evaluation
from overtone.finetune.training.evaluation import evaluate
from overtone.finetune.training.loop import Progress, run_evaluation
from overtone.finetune.training.step import Training
from tests.finetune import tiny
from tests.finetune.plain import plain_loss, plain_terms, reference


def test_evaluation_is_the_plain_mean_and_changes_no_state(tmp_path: Path, world: World) -> None:
    val = tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(13, seed=5))
    training, _ = tiny.built(
        world, tiny.config_in(tmp_path, ("data.val", str(val)), ("options.dropout", "0.5"), ("parallel.strategy", "fsdp"))
    )
    model = reference(training)
    assert training.val is not None
    numbers = evaluate(training, training.val, StopRequests())
    rows = tiny.texts(13, seed=5)
    assert numbers["loss"] == pytest.approx(float(plain_loss(model, rows).detach()), rel=1e-6), "dropout is off"
    sums, counts = plain_terms(model, rows)
    assert numbers["after_next"] == pytest.approx(float(sums["after_next"].detach()) / counts["after_next"], rel=1e-6)
    assert all(module.training for module in training.model.modules())
    assert all(parameter.grad is None and hasattr(parameter, "full_tensor") for parameter in training.model.parameters())
    assert evaluate(training, training.val, StopRequests()) == numbers


@pytest.mark.parametrize("size", [2, 4])
def test_the_filler_rows_of_a_rank_do_not_count(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Five micro-batches on two ranks or four: collectives need everyone, so who has none left runs a row again.

    The ranks take their turns here one after the other, since evaluation leaves no trace; what they would sum is summed by hand.
    """
    rows = tiny.texts(13, seed=5)
    val = tiny.write_rows(tmp_path / "val.jsonl", rows)
    training, _ = tiny.built(
        world, tiny.config_in(tmp_path, ("data.val", str(val)), ("parallel.strategy", "fsdp"), ("train.micro_tokens", "80"))
    )
    assert training.val is not None and len(evaluation.make_micro_batches(training.val, 80)) == 5
    of_ranks: list[list[float]] = []
    monkeypatch.setattr(evaluation, "sum_over_data_ranks", lambda _, values: of_ranks.append(values) or values)
    for rank in range(size):
        evaluate(dataclasses.replace(training, world=dataclasses.replace(world, rank=rank, size=size)), training.val, StopRequests())
    assert len(of_ranks) == size and [len(values) for values in of_ranks] == [4] * size
    sums, counts = plain_terms(reference(training), rows)
    *totals, after_next, following = (sum(values) for values in zip(*of_ranks, strict=True))
    assert {"after_next": after_next, "next": following} == counts
    assert totals == [pytest.approx(float(sums[name].detach()), rel=1e-6) for name in ("after_next", "next")]


# --- several files


LONG, SHORT = tiny.texts(9, seed=5), tiny.texts(4, longest=8, seed=6)


def with_two_files(folder: Path, world: World, *overrides: tuple[str, str]) -> Training:
    files = [tiny.write_rows(folder / f"{name}.jsonl", rows) for name, rows in (("long", LONG), ("short", SHORT))]
    named = ("data.val", f"[{files[0]}, {files[1]}]")
    training, _ = tiny.built(world, tiny.config_in(folder, named, ("parallel.strategy", "fsdp"), ("train.micro_tokens", "80"), *overrides))
    return training


def test_each_file_has_its_own_loss_and_the_total_is_over_all_rows(tmp_path: Path, world: World) -> None:
    training = with_two_files(tmp_path, world)
    assert training.val is not None and training.validation_sources and {*training.validation_sources} == {"long", "short"}
    found, model = evaluate(training, training.val, StopRequests()), reference(training)
    assert found is not None
    for name, rows in (("loss", LONG + SHORT), ("long/loss", LONG), ("short/loss", SHORT)):
        assert found[name] == pytest.approx(float(plain_loss(model, rows).detach()), rel=1e-6)
    assert found["loss"] != pytest.approx((found["long/loss"] + found["short/loss"]) / 2, rel=1e-4), "no mean of means"
    sums, counts = plain_terms(model, SHORT)
    assert found["short/after_next"] == pytest.approx(float(sums["after_next"].detach()) / counts["after_next"], rel=1e-6)


@pytest.mark.parametrize("size", [2, 4])
def test_the_files_are_evaluated_alike_by_several_ranks(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """As above: the ranks take their turns one after the other. With four, one of them has no row of the short file."""
    training = with_two_files(tmp_path, world)
    assert training.val is not None
    alone = evaluate(training, training.val, StopRequests())
    of_ranks: list[list[float]] = []
    monkeypatch.setattr(evaluation, "sum_over_data_ranks", lambda _, values: of_ranks.append(values) or values)
    ranks = [dataclasses.replace(training, world=dataclasses.replace(world, rank=rank, size=size)) for rank in range(size)]
    for one in ranks:
        evaluate(one, training.val, StopRequests())
    summed = [sum(values) for values in zip(*of_ranks, strict=True)]
    monkeypatch.setattr(evaluation, "sum_over_data_ranks", lambda *_: summed)
    together = evaluate(training, training.val, StopRequests())
    assert (
        alone is not None and together is not None and together == {name: pytest.approx(value, rel=1e-12) for name, value in alone.items()}
    )


def test_a_run_chooses_by_one_of_the_files(tmp_path: Path, world: World) -> None:
    training = with_two_files(tmp_path, world, ("checkpoint.best_by", "short/loss"), ("eval.every", "1"), ("train.steps", "1"))
    progress = run_evaluation(training, Progress(), Events(tmp_path / "run", world.accelerator, 1, 0, {}), StopRequests())
    assert progress.best_value == progress.evaluation["short/loss"] != progress.validation_loss
    (event,) = [one for one in read_log(tmp_path / "run" / "log.jsonl") if one["event"] == "evaluation"]
    assert {"val/loss", "val/long/loss", "val/short/loss"} <= event.keys() and event["val/short/loss"] == progress.best_value


# --- the loader works ahead, and the host waits once


def test_the_sums_are_those_of_python_s_floats_one_after_the_other(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: fp32 sums, added as doubles in the order of the micro-batches."""
    val = tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(13, seed=5))
    training, _ = tiny.built(world, tiny.config_in(tmp_path, ("data.val", str(val)), ("train.micro_tokens", "80")))
    assert training.val is not None
    seen: dict[str, list[float]] = {}

    def noting(model: Any, batch: Any) -> dict[str, Any]:
        terms = training.recipe.loss(model, batch)
        for name, term in terms.items():
            seen.setdefault(name, []).append(float(term.sum))
        return terms

    summed: list[list[float]] = []
    monkeypatch.setattr(evaluation, "sum_over_data_ranks", lambda _, values: summed.append(values) or values)
    noted = dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, loss=noting))
    evaluate(noted, training.val, StopRequests())
    assert len(seen["next"]) == 5
    in_order = []
    for name in sorted(seen):
        total = 0.0
        for value in seen[name]:
            total = total + value
        in_order.append(total)
    assert summed[0][:2] == in_order


class Waits(TorchDispatchMode):
    """Counts what makes the host wait for a value of the device: `item`, and `tolist`, which no dispatch shows."""

    count = 0

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        self.count += operation in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return operation(*arguments, **(named or {}))


def test_the_host_waits_once_for_all_sums(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    val = tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(13, seed=5))
    training, _ = tiny.built(world, tiny.config_in(tmp_path, ("data.val", str(val)), ("train.micro_tokens", "80")))
    assert training.val is not None
    monkeypatch.setattr(evaluation, "sum_over_ranks", lambda _, values: values)  # votes are of the host's own memory
    monkeypatch.setattr(evaluation, "sum_over_data_ranks", lambda _, values: values)
    lists: list[int] = []
    tolist = Tensor.tolist

    def counted(tensor: Tensor) -> Any:
        if threading.current_thread() is threading.main_thread():  # the loader's thread waits for no device
            lists.append(tensor.numel())
        return tolist(tensor)

    monkeypatch.setattr(Tensor, "tolist", counted)
    with Waits() as waits:
        evaluate(training, training.val, StopRequests())
    assert (waits.count, lists) == (0, [2])


def test_the_next_batches_are_loaded_while_one_is_computed(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward waits here until the loader has begun on the micro-batch after it: without reading ahead, it never would."""
    val = tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(13, seed=5))
    training, _ = tiny.built(world, tiny.config_in(tmp_path, ("data.val", str(val)), ("train.micro_tokens", "80")))
    assert training.val is not None
    begun = [threading.Event() for _ in range(5)]
    loaded, computed = iter(begun), iter([*begun[1:], begun[-1]])
    turns = batching.Loader.turns

    def noting(loader: batching.Loader, micros: Any) -> Any:
        next(loaded).set()
        return turns(loader, micros)

    def waiting(model: Any, batch: Any) -> Any:
        assert next(computed).wait(100)
        return training.recipe.loss(model, batch)

    monkeypatch.setattr(batching.Loader, "turns", noting)
    waited = dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, loss=waiting))
    assert evaluate(waited, training.val, StopRequests()) is not None
