"""The learning rate at its landmarks, what decays, and the optimizer state that a checkpoint is read into."""

from __future__ import annotations

import itertools
from typing import Literal

import pytest
import torch
from torch import nn

from overtone.finetune.config import Train
from overtone.finetune.modeling.optimizers import learning_rate, make_optimizer, restore_state, update_parameters


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.gate = nn.Parameter(torch.ones(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.linear(self.norm(self.embedding(ids)))).sum() * self.gate.sum()


def test_the_cosine_schedule_has_known_values() -> None:
    train = Train(lr=2.0, warmup=0.1, final_lr=0.25)
    rates = [learning_rate(step, 100, train) for step in range(101)]
    assert rates[0] == pytest.approx(0.2) and rates[4] == pytest.approx(1.0)
    assert rates[9] == rates[10] == 2.0, "the warm-up ends at the peak, where the cosine begins"
    assert rates[55] == pytest.approx(2.0 * (0.25 + 0.75 / 2)), "half way down"
    assert rates[100] == pytest.approx(0.5)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:])) and min(rates) == rates[0]


def test_the_constant_schedule_has_known_values() -> None:
    train = Train(lr=2.0, warmup=0.05, schedule="constant")
    assert [learning_rate(step, 40, train) for step in (0, 1, 2, 39)] == [1.0, 2.0, 2.0, 2.0]


def test_schedules_are_defined_at_their_edges() -> None:
    assert learning_rate(0, 1, Train(lr=1.0, warmup=0.0)) == 1.0
    assert learning_rate(0, 1, Train(lr=1.0, warmup=1.0)) == 1.0
    rounded_up = Train(lr=1.0, warmup=0.0015)
    assert [learning_rate(step, 1000, rounded_up) for step in (0, 1, 2)] == [0.5, 1.0, 1.0], "a warm-up of 1.5 steps takes two"
    assert learning_rate(200, 100, Train(lr=1.0, final_lr=0.0)) == pytest.approx(0.0), "not back up again after the end"


def test_only_matrices_decay() -> None:
    model = Mixed()
    optimizer = make_optimizer(model, Train(weight_decay=0.5, beta1=0.7, beta2=0.8, lr=3.0))
    names = {parameter: name for name, parameter in model.named_parameters()}
    decays = {names[p]: group["weight_decay"] for group in optimizer.param_groups for p in group["of"]}
    assert decays == {"linear.weight": 0.5, "linear.bias": 0.0, "norm.weight": 0.0, "norm.bias": 0.0, "embedding.weight": 0.0, "gate": 0.0}
    assert all(group["betas"] == (0.7, 0.8) and group["lr"] == 3.0 for group in optimizer.param_groups)


def test_a_model_may_consist_of_matrices_or_of_vectors_alone() -> None:
    assert len(make_optimizer(nn.LayerNorm(3), Train()).param_groups) == 1
    assert len(make_optimizer(nn.Linear(3, 3, bias=False), Train()).param_groups) == 1


def test_a_shared_matrix_is_trained_once_and_as_an_embedding() -> None:
    model = Mixed()
    model.linear.weight = model.embedding.weight
    groups = make_optimizer(model, Train()).param_groups
    assert [len(group["params"]) for group in groups] == [5]


def test_restored_state_has_the_layout_of_adamw_s_own() -> None:
    """Canary: another key or type in a later torch would make a resumed run differ from one that was never stopped."""
    model = Mixed()
    optimizer = make_optimizer(model, Train(lr=1e-9))
    for _ in range(3):
        model(torch.tensor([1, 2])).backward()
        update_parameters(optimizer, 1e-9)
    own = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    assert len(own) == 6
    optimizer.state.clear()
    restore_state(optimizer, 3)
    assert optimizer.state.keys() == own.keys()
    for parameter, state in own.items():
        restored = optimizer.state[parameter]
        assert restored.keys() == state.keys() == {"step", "exp_avg", "exp_avg_sq"}
        for name, value in state.items():
            assert (restored[name].dtype, restored[name].shape, restored[name].device) == (value.dtype, value.shape, value.device)
        assert restored["step"] == state["step"] == 3
        assert not restored["exp_avg"].any() and not restored["exp_avg_sq"].any()


@pytest.mark.parametrize("rule", ["adamw", "adamw_8bit"])
def test_an_update_that_skips_a_weight_is_counted_for_it(rule: Literal["adamw", "adamw_8bit"]) -> None:
    """A checkpoint has one count for all weights: a run that continues without a stop must have the same."""
    reached, skipped = nn.Linear(256, 16, bias=False), nn.Linear(256, 16, bias=False)
    optimizer = make_optimizer(nn.ModuleList([reached, skipped]), Train(optimizer=rule), (nn.Linear,))
    for layers in ([reached, skipped], [reached], [reached, skipped]):
        for layer in layers:
            layer.weight.grad = torch.ones_like(layer.weight)
        update_parameters(optimizer, 1e-3)
    assert [int(state["step"]) for state in optimizer.state.values()] == [3, 3]
    assert not torch.equal(reached.weight, skipped.weight)


def test_what_is_updated_is_what_the_model_has_now() -> None:
    """The first forward of a sharded model may put a shard elsewhere: an update of where it was would be lost."""
    model = Mixed()
    optimizer = make_optimizer(model, Train(lr=0.1))
    model.linear.weight.data = model.linear.weight.data.clone()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model(torch.tensor([1, 2])).backward()
    update_parameters(optimizer, 0.1)
    still = [name for name, parameter in model.named_parameters() if torch.equal(before[name], parameter)]
    assert still == ["frozen.weight", "frozen.bias"]
    assert all(parameter.grad is None for parameter in model.parameters())
