"""Resumable training: the same bits however often it is interrupted."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from workshop.demo_models import resumable_training
from workshop.demo_models.resumable_training import Schedule, train_parameters

SCHEDULE = Schedule(steps=40, rate=1e-2, plateau=0.5, warmup=10)


def task(seed: int = 0) -> tuple[nn.Module, dict[str, Tensor], object]:
    """A small regression whose batch is drawn from the step's number."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(step: int) -> Tensor:
        inputs = torch.randn(16, 3, generator=torch.Generator().manual_seed(step))
        return (model(inputs)[:, 0] - inputs.prod(1)).square().mean()

    return model, dict(model.named_parameters()), loss


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    _, whole, loss = task()
    train_parameters(tmp_path / "whole", SCHEDULE, whole, loss)
    for until in (7, 8, 31, None):
        _, parts, loss = task(seed=1)  # except in the first run, the weights must come from the file
        if until == 7:
            _, parts, loss = task()
        train_parameters(tmp_path / "parts", SCHEDULE, parts, loss, until)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_training_reduces_the_loss_and_a_finished_run_does_nothing(tmp_path: Path) -> None:
    _, parameters, loss = task()
    before = sum(loss(step).item() for step in range(40)) / 40
    assert train_parameters(tmp_path / "run", SCHEDULE, parameters, loss) < before
    assert train_parameters(tmp_path / "run", SCHEDULE, parameters, loss) is None


def test_the_rate_warms_up_stays_constant_and_decays() -> None:
    rates = [SCHEDULE.at(step) for step in range(40)]
    assert rates[:10] == pytest.approx([1e-2 * (step + 1) / 10 for step in range(10)])
    assert rates[10:21] == pytest.approx([1e-2] * 11)
    assert all(one > other for one, other in pairwise(rates[20:]))
    assert rates[-1] < 3e-4


def test_a_parameter_without_gradient_is_refused(tmp_path: Path) -> None:
    _, parameters, loss = task()
    parameters["idle"] = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="no gradient reaches idle"):
        train_parameters(tmp_path / "run", SCHEDULE, parameters, loss)


def test_a_nan_loss_stops_before_the_update(tmp_path: Path) -> None:
    _, parameters, loss = task()
    with pytest.raises(FloatingPointError, match="run, step 3"):
        train_parameters(tmp_path / "run", SCHEDULE, parameters, lambda step: loss(step) * (float("nan") if step == 3 else 1.0))
    assert all(tensor.isfinite().all() for tensor in parameters.values())


def test_progress_is_logged_and_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(resumable_training, "REPORT_EVERY", 10)
    _, parameters, loss = task()
    train_parameters(tmp_path / "run", SCHEDULE, parameters, loss)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 30, 40]
    assert "run: {'step': 40" in capsys.readouterr().out
