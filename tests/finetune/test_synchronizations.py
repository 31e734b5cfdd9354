"""The counter of synchronizations detects each kind with its line, and counts nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.finetune.synchronizations import report, synchronizations

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WAITING: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "item": ("item", lambda x: x.sum().item()),
    "float": ("item", lambda x: float(x[0])),
    "int": ("item", lambda x: int(x[0])),
    "bool": ("item", lambda x: bool((x > 0).all())),
    "if": ("item", lambda x: 1 if x[0] > 0 else 0),
    "range": ("item", lambda x: range(x.long()[0])),
    "format": ("item", lambda x: f"{x[0]:.2f}"),
    "nonzero": ("nonzero", lambda x: x.nonzero()),
    "where": ("nonzero", lambda x: torch.where(x > 0)),
    "unique": ("nonzero", lambda x: x.unique()),
    "masked_select": ("nonzero", lambda x: x.masked_select(x > 0)),
    "repeat_interleave": ("nonzero", lambda x: x.repeat_interleave(x.long())),
    "equal": ("nonzero", lambda x: torch.equal(x, x + 1)),
    "mask": ("boolean index", lambda x: x[x > 0]),
    "mask of rows": ("boolean index", lambda x: x.expand(3, 4)[:, x > 0]),
    "mask that is filled by tensors": ("boolean index", lambda x: x.clone().__setitem__(x > 0, x[:1])),
    "tolist": ("tolist", lambda x: x.tolist()),
    "numpy": ("numpy", lambda x: x.numpy()),
    "asarray": ("numpy", lambda x: np.asarray(x)),
    "cpu": ("copy", lambda x: x.cpu()),
    "to cpu": ("copy", lambda x: x.to("cpu")),
    "to cpu, and read": ("copy", lambda x: x.cpu().tolist()),
    "numbers": ("copy", lambda x: torch.tensor([1.0], device=x.device)),
    "numbers like these": ("copy", lambda x: x.new_tensor([1.0])),
    "rows by host indices": ("copy", lambda x: x[torch.tensor([0, 1])]),
    "unpinned": ("copy", lambda x: torch.ones(3).to(x.device)),
    "unpinned, asynchronously": ("copy", lambda x: torch.ones(3).to(x.device, non_blocking=True)),
    "unpinned, as a tensor": ("copy", lambda x: torch.as_tensor(torch.ones(3), device=x.device)),
    "pinned, but blocking": ("copy", lambda x: torch.ones(3).pin_memory().to(x.device)),
    "unpinned, into another": ("copy", lambda x: x.clone().copy_(torch.ones(4), non_blocking=True)),
    "from numpy": ("copy", lambda x: torch.from_numpy(np.ones(3)).to(x.device, non_blocking=True)),
}
QUIET: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda x: (x * 2 + 1).sum().sqrt(),
    "a mask that is filled by a number": lambda x: x.clone().__setitem__(x > 0, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x),
    "where of three": lambda x: torch.where(x > 0, x, 0.0),
    "index_select": lambda x: x.index_select(0, torch.zeros(2, dtype=torch.int64, device=x.device)),
    "rows by device indices": lambda x: x[torch.zeros(2, dtype=torch.int64, device=x.device)],
    "slices": lambda x: x[1:3][None],
    "sizes": lambda x: range(len(x)),
    "another type": lambda x: x.to(torch.bfloat16).to(x),
    "where it is already": lambda x: x.to(x.device),
    "constructed there": lambda x: torch.zeros(3, device=x.device) + torch.arange(3, device=x.device),
    "repeat_interleave, of known size": lambda x: x.repeat_interleave(torch.ones_like(x).long(), output_size=4),
    "pinned": lambda x: torch.ones(3).pin_memory().to(x.device, non_blocking=True),
    "pinned, into another": lambda x: x.clone().copy_(torch.ones(4).pin_memory(), non_blocking=True),
    "on the host alone": lambda x: [float(each) for each in torch.tensor([1.0, 2.0]) * 2 if each > 0],
    "a mask on the host": lambda x: torch.arange(3)[torch.arange(3) > 1].tolist(),
    "numpy on the host": lambda x: torch.from_numpy(np.ones(3)).sum().item(),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_wait_is_noticed_with_its_line(name: str) -> None:
    kind, work = WAITING[name]
    if DEVICE.type == "cuda" and kind == "numpy":
        pytest.skip("torch refuses it there")
    x = torch.arange(4.0, device=DEVICE)
    with synchronizations(DEVICE) as found:
        work(x)
    assert [each.kind for each in found] == [kind] if DEVICE.type == "cpu" else found, report(found)
    line = inspect.getsourcelines(work)[1]
    assert found[0].place.startswith(f"tests/finetune/test_synchronizations.py:{line}"), report(found)


@pytest.mark.parametrize("name", QUIET)
def test_other_operations_are_not_counted(name: str) -> None:
    x = torch.arange(4.0, device=DEVICE)
    with synchronizations(DEVICE) as found:
        QUIET[name](x)
    assert found == [], report(found)


def test_a_tensor_named_as_on_the_host_may_be_read() -> None:
    x = torch.arange(4.0)
    with synchronizations(DEVICE, on_host=[x]) as found:
        x.tolist()
        x.to(DEVICE, non_blocking=True).exp()
    assert [each.kind for each in found] == ["copy"], report(found)


def test_the_device_of_a_copy_is_tracked() -> None:
    with synchronizations(DEVICE) as found:
        x = torch.ones(3).pin_memory().to(DEVICE, non_blocking=True)
        y = x.cpu() + 1
        y.tolist()
        x.tolist()
    assert len(found) == 2, report(found)


def test_a_backward_pass_is_watched_too() -> None:
    class Careless(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * gradient.sum().item()

    x = torch.ones(4, device=DEVICE, requires_grad=True)
    with synchronizations(DEVICE) as found:
        y: Any = Careless.apply(x)
        y.sum().backward()
    assert len(found) == 1, report(found)


def test_torch_is_restored_afterwards() -> None:
    with synchronizations(DEVICE):
        assert torch.ones(2).pin_memory().is_pinned()
    assert {"to", "cpu", "tolist", "numpy", "pin_memory", "is_pinned", "new_tensor"}.isdisjoint(vars(Tensor))
    x = torch.arange(4.0)
    with synchronizations(DEVICE) as found:
        pass
    assert x[x > 0].tolist() == [1.0, 2.0, 3.0] and found == []
