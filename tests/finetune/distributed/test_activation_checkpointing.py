"""Activation checkpointing changes memory and time, never a number."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn

from overtone.finetune.distributed import activation_checkpointing


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.calls = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return hidden + self.down(torch.nn.functional.gelu(self.up(hidden)))


def gradients(how: Literal["none", "selective", "full"]) -> tuple[list[Tensor], int, list[str]]:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    activation_checkpointing.wrap_blocks(model, (Block,), how)
    model(torch.randn(4, 8)).square().sum().backward()
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return found, sum(block.calls for block in blocks), list(model.state_dict())


@pytest.mark.parametrize("how", ["selective", "full"])
def test_the_gradients_are_the_same_and_the_blocks_run_twice(how: Literal["selective", "full"]) -> None:
    plain, once, names = gradients("none")
    again, twice, wrapped = gradients(how)
    assert len(plain) == len(again) == 8 and all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    assert (once, twice) == (2, 4)
    assert names == wrapped, "checkpoints must not see the wrapper"


def test_selective_keeps_products_and_recomputes_the_rest() -> None:
    products: list[str] = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
            products.append(str(operation))
            return operation(*arguments, **(options or {}))

    counts = {}
    for how in ("none", "selective", "full"):
        products.clear()
        with Spy():
            gradients(how)  # type: ignore[arg-type]
        counts[how] = sum("addmm" in name for name in products)
    assert counts["none"] == counts["selective"] == 4 < counts["full"]


@pytest.mark.parametrize(("how", "times"), [("selective", 1), ("full", 2)])
def test_selective_keeps_the_output_of_the_varlen_kernel(how: Literal["selective", "full"], times: int) -> None:
    """In shape only: the kernel itself needs a GPU."""
    called: list[str] = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
            called.append(str(operation))
            return operation(*arguments, **(options or {}))

    class Attending(nn.Module):
        def forward(self, states: Tensor) -> Tensor:
            bounds = torch.tensor([0, 3, 8], dtype=torch.int32, device="meta")
            found = varlen_attn(states, states, states, bounds, bounds, 5, 5, window_size=(-1, 0))
            assert isinstance(found, Tensor)
            return found.sin()

    model = nn.Sequential(Attending())
    activation_checkpointing.wrap_blocks(model, (Attending,), how)
    with Spy():
        model(torch.randn(8, 2, 16, device="meta", dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    assert called.count("torch_attn._varlen_attn.default") == times
