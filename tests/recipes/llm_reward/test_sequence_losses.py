"""Sums and metrics are those of the formulas, in packed rows and padded ones, and each injected fault is detected."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from overtone.recipes.language import collation
from overtone.recipes.llm_reward import sequence_losses
from overtone.recipes.llm_reward.sequence_losses import LOSS, collate, compare_classes, compare_sides, compute_terms, pack, report
from overtone.recipes.llm_reward.sequence_rows import read, split_sample
from tests.recipes.llm_reward.tiny_scorers import LABELLED, PAIRS, build_scorer, processor_of

LABELS = ("bad", "good", "open")
MARGINS = (0.0, 1.0, -0.5, 2.0)


def sum_terms(terms: dict[str, Any]) -> dict[str, float]:
    return {name: float(term.sum.detach()) for name, term in terms.items()}


def test_the_loss_of_a_pair_is_that_of_bradley_and_terry() -> None:
    found = compare_sides(torch.tensor([[1.0, 0.0], [-2.0, 0.5]]), torch.tensor([0.5, 0.0]), 0.1)
    sums = sum_terms(found)
    assert sums[LOSS] == pytest.approx(math.log(1 + math.exp(-0.5)) + math.log(1 + math.exp(2.5)))
    assert sums["centering"] == pytest.approx(1 + 1.5**2) and [found[LOSS].weight, found["centering"].weight] == [1.0, 0.1]
    assert (sums["accuracy"], sums["margin"], sums["chosen_reward"], sums["rejected_reward"]) == (1, -1.5, -1.0, 0.5)
    assert not any(found[name].weight for name in sequence_losses.METRICS)
    tied = compare_sides(torch.zeros(1, 2), torch.zeros(1), 0.0)
    assert float(tied["accuracy"].sum) == 0, "equal rewards choose neither"


def test_the_loss_of_a_class_is_cross_entropy_and_each_class_has_its_accuracy() -> None:
    logits, labels = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 3.0, 0.0]]), torch.tensor([0, 0, 1])
    sums = sum_terms(compare_classes(logits, labels))
    expected = sum(
        math.log(sum(math.exp(value) for value in row)) - row[label] for row, label in zip(logits.tolist(), [0, 0, 1], strict=True)
    )
    assert sums["cross_entropy"] == pytest.approx(expected) and sums["accuracy"] == 2
    means = report({name: value / 3 for name, value in sums.items()})
    assert {name: means[name] for name in means if name.startswith("accuracy")} == pytest.approx(
        {"accuracy": 2 / 3, "accuracy_0": 0.5, "accuracy_1": 1.0}
    ), "a class without rows has no accuracy"
    assert len(compare_classes(torch.zeros(1, 21), torch.zeros(1, dtype=torch.int64))) == 2


@pytest.mark.parametrize("make_batch", [pack, collate])
def test_values_are_those_of_each_sequence_alone(base: Path, make_batch: Callable[..., Any]) -> None:
    model = build_scorer(base, centering=0.3)
    samples = [read({**row, "margin": margin}, processor_of(), Path()) for row, margin in zip(PAIRS, MARGINS, strict=True)]
    batch = make_batch(samples)
    assert batch.targets == dict.fromkeys((LOSS, "centering", *sequence_losses.METRICS), len(PAIRS))
    found = sum_terms(compute_terms(model, batch))
    rewards = torch.tensor([[value_alone(model, side["ids"]) for side in split_sample(sample)] for sample in samples], dtype=torch.float64)
    expected = sum_terms(compare_sides(rewards, torch.tensor(MARGINS, dtype=torch.float64), 0.3))
    assert found == pytest.approx(expected, rel=1e-6)


def value_alone(model: Any, ids: Tensor) -> float:
    """By the decoder and the head themselves."""
    return float((model.model(input_ids=ids[None]).last_hidden_state[0, -1] @ model.score.weight[0]).detach())


def read_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sequence_losses._finish
    monkeypatch.setattr(sequence_losses, "_finish", lambda batch, last, samples: right(batch, last - 1, samples))


def swap_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_losses, "split_sample", lambda sample: split_sample(sample)[::-1])


def forget_the_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_losses, "compare_sides", lambda rewards, margins, weight: compare_sides(rewards, 0 * margins, weight))


def let_sides_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    right = collation.pack

    def joined(samples: list[Any]) -> Any:
        batch = right(samples)
        whole = torch.tensor([0, batch.tensors["ids"].shape[1]], dtype=torch.int32)
        monkeypatch.setattr(sequence_losses, "_finish", lambda found, last, rows: finish(batch_of(found, whole), last, rows))
        return batch

    finish = sequence_losses._finish
    monkeypatch.setattr(collation, "pack", joined)


def batch_of(batch: Any, bounds: Tensor) -> Any:
    return type(batch)({**batch.tensors, "bounds": bounds}, batch.targets, (int(bounds[1]),))


FAULTS = [read_before_the_end, swap_sides, forget_the_margin, let_sides_see_each_other]


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_each_fault_is_detected(base: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        test_values_are_those_of_each_sequence_alone(base, sequence_losses.pack)


def test_labels_are_beside_their_rows(base: Path) -> None:
    model, processor = build_scorer(base, 3), processor_of(labels=LABELS)
    samples = [read(row, processor, Path()) for row in LABELLED]
    found = [sum_terms(compute_terms(model, make_batch(samples))) for make_batch in (pack, collate)]
    alone = [sum_terms(compute_terms(model, collate([sample]))) for sample in samples]
    for sums in found:
        assert sums == pytest.approx({name: sum(each[name] for each in alone) for name in sums}, rel=1e-6)
    assert found[0]["share_1"] == 4 and found[0]["share_2"] == 1
