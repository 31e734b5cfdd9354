"""A weight with a low-rank update gives the results and gradients of the sum, without computing it in products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from overtone.finetune.modeling.low_rank_weight import LowRankWeight, align_rank

EXPERTS, HIGH, WIDE, RANK = 3, 8, 12, 2
ENDS = torch.tensor([4, 4, 7], dtype=torch.int32)
CHOSEN = torch.tensor([2, 0, 2, 1])
PRODUCTS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "linear": lambda weight, x: functional.linear(x, weight[1]),
    "linear of one expert": lambda weight, x: functional.linear(x, weight[torch.tensor(1)]),
    "linear with a bias": lambda weight, x: functional.linear(x, weight[1], bias=torch.arange(8.0)),
    "matmul": lambda weight, x: x @ weight[torch.tensor(2)].transpose(0, 1),
    "matmul from the left": lambda weight, x: weight[0] @ x.T,
    "bmm": lambda weight, x: torch.bmm(x.repeat(EXPERTS, 1).view(EXPERTS, -1, WIDE), weight.transpose(-2, -1)),
    "bmm from the left": lambda weight, x: torch.bmm(weight[CHOSEN], x[:4].unsqueeze(-1)),
    "grouped": lambda weight, x: functional.grouped_mm(x, weight.transpose(1, 2), offs=ENDS),
}
OTHERS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "list": lambda weight, x: x @ torch.cat([weight[0], weight[1]]).T,
    "result in place": lambda weight, x: multiply_into(x.detach(), weight[0].transpose(0, 1)) * x.sum(),
    "keyword": lambda weight, x: functional.linear(x, weight=weight[1]),
    "einsum": lambda weight, x: torch.einsum("eoi,ni->eno", weight, x),
    "method": lambda weight, x: x @ weight.reshape(-1, WIDE).T,
    "index of two axes": lambda weight, x: functional.linear(x, weight[1, :4]),
    "index of rows": lambda weight, x: functional.linear(x, weight[1][2:4]),
    "other axes": lambda weight, x: x @ weight.transpose(0, 2)[:, :, 0],
    "both sides": lambda weight, x: torch.bmm(weight, weight.transpose(1, 2)) * x.sum(),
    "split": lambda weight, x: functional.linear(x, torch.chunk(weight, 3)[2][0]),
}


def multiply_into(x: Tensor, weight: Any) -> Tensor:
    """By an argument that no gradient passes, so the factors get one from a second product."""
    result = torch.empty(len(x), HIGH)
    with torch.no_grad():
        torch.mm(x, weight, out=result)
    return result + x @ weight


def make_parts() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    base = torch.randn(EXPERTS, HIGH, WIDE)
    return base, torch.randn(EXPERTS, HIGH, RANK, requires_grad=True), torch.randn(EXPERTS, RANK, WIDE, requires_grad=True)


@pytest.mark.parametrize("name", [*PRODUCTS, *OTHERS])
def test_operations_and_their_gradients_are_those_of_the_sum(name: str) -> None:
    found, expected = [], []
    for results, wrap in ((found, LowRankWeight), (expected, lambda base, left, right: base + left @ right)):
        base, left, right = make_parts()
        x = torch.randn(7, WIDE, generator=torch.Generator().manual_seed(1)).requires_grad_()
        value = {**PRODUCTS, **OTHERS}[name](wrap(base, left, right), x)
        value.square().sum().backward()
        results += [value, x.grad, left.grad, right.grad]
    for one, other in zip(found, expected, strict=True):
        assert one is not None and other is not None and one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-4)
    assert float(expected[2].abs().max()) > 0.1


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_keeps_no_sum_for_the_backward_pass(name: str) -> None:
    """Of tensors as large as a weight, only the frozen one itself."""
    base, left, right = make_parts()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):  # type: ignore[func-returns-value]
        PRODUCTS[name](LowRankWeight(base, left, right), torch.randn(7, WIDE, requires_grad=True))
    weights = [tensor for tensor in kept if tensor.shape[-2:] in ((HIGH, WIDE), (WIDE, HIGH))]
    gathered = name == "bmm from the left"  # weights of some experts are copied by their index
    assert weights and all(gathered or tensor.untyped_storage().data_ptr() == base.untyped_storage().data_ptr() for tensor in weights)
    assert all(tensor.equal(base[CHOSEN]) for tensor in weights if gathered)


def test_it_has_the_attributes_of_the_sum() -> None:
    base, left, right = make_parts()
    weight = LowRankWeight(base.bfloat16(), left.bfloat16(), right.bfloat16())
    assert (weight.shape, weight.dtype, weight.device, weight.size(0)) == ((EXPERTS, HIGH, WIDE), torch.bfloat16, base.device, EXPERTS)
    assert not hasattr(weight, "__array__")


@pytest.mark.parametrize(("dtype", "rank", "padded"), [(torch.bfloat16, 4, 8), (torch.float32, 3, 4), (torch.bfloat16, 16, 16)])
def test_the_rank_of_grouped_products_has_whole_multiples_of_16_bytes(dtype: torch.dtype, rank: int, padded: int) -> None:
    torch.manual_seed(0)
    left, right = torch.randn(3, 8, rank, dtype=dtype), torch.randn(3, rank, 16, dtype=dtype)
    found = align_rank(left, right)
    assert found[0].shape == (3, 8, padded) and found[1].shape == (3, padded, 16)
    x = torch.randn(7, 8, dtype=dtype)
    weight = LowRankWeight(torch.zeros(3, 8, 16, dtype=dtype), left, right)
    bounds = ((0, 4), (4, 4), (4, 7))
    expected = torch.cat([x[start:end] @ left[number] @ right[number] for number, (start, end) in enumerate(bounds)])
    assert torch.allclose(functional.grouped_mm(x, weight, offs=ENDS), expected, atol=0.1 if dtype == torch.bfloat16 else 1e-5)
