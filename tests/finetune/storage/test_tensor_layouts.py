"""Tests of `overtone.finetune.storage.tensor_layouts`: the functions of torch give the same values for layouts as for tensors, in any
slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from overtone.finetune.storage.tensor_layouts import Reader, TensorLayout, invert_layouts, read_through

FILES = {f"t{number}": torch.arange(number * 100, number * 100 + 24).reshape(4, 6).float() for number in range(6)}
SLICES: tuple[tuple[slice, ...] | None, ...] = (
    None,
    (slice(1, 3),),
    (slice(0, 0),),
    (slice(None), slice(1, 4)),
    (slice(1, None), slice(None, -1)),
)

Pieces = Mapping[str, Any]
"""Name → tensor of `FILES`, or its layout."""


def stack_experts(parts: Pieces) -> dict[str, Any]:
    gate, up = (torch.stack([parts[f"t{first + number}"] for number in range(3)], dim=0) for first in (0, 3))
    return {"gate_up": torch.cat([gate, up], dim=1)}


def transpose_experts(parts: Pieces) -> dict[str, Any]:
    return {"turned": torch.transpose(stack_experts(parts)["gate_up"], 1, 2).contiguous(), "flat": torch.transpose(parts["t0"], 0, 1)}


def chunk_rows(parts: Pieces) -> dict[str, Any]:
    return dict(zip(("q", "k"), torch.chunk(torch.cat([parts["t0"], parts["t1"], parts["t2"]]), 2, dim=-2), strict=True))


def split_columns(parts: Pieces) -> dict[str, Any]:
    return dict(zip("abc", torch.split(parts["t4"], [1, 3, 2], dim=1), strict=True)) | {
        f"d{number}": value for number, value in enumerate(torch.split(torch.stack([parts["t1"], parts["t2"]], dim=-1), 3, dim=1))
    }


MOVES: tuple[Callable[[Pieces], dict[str, Any]], ...] = (stack_experts, transpose_experts, chunk_rows, split_columns)


def reader(tensors: Mapping[str, Tensor]) -> Reader:
    return lambda name, slices: tensors[name] if slices is None else tensors[name][slices]


def make_layouts(move: Callable[[Pieces], dict[str, Any]]) -> dict[str, TensorLayout]:
    return move({name: TensorLayout.of(name, value.shape) for name, value in FILES.items()})


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("slices", SLICES)
def test_a_layout_has_the_values_of_the_same_moves_of_tensors(
    move: Callable[[Pieces], dict[str, Any]], slices: tuple[slice, ...] | None
) -> None:
    expected = move(FILES)
    read = read_through(make_layouts(move), reader(FILES))
    for name, whole in expected.items():
        value = whole if slices is None else whole[slices]
        found = read(name, slices)
        assert found.shape == value.shape and torch.equal(found, value), name
    assert torch.equal(read("t5", slices), reader(FILES)("t5", slices)), "a tensor without a layout is read as it is stored"


@pytest.mark.parametrize("move", MOVES)
def test_inverted_layouts_give_the_stored_tensors_again(move: Callable[[Pieces], dict[str, Any]]) -> None:
    layouts = make_layouts(move)
    inverse = invert_layouts({name: layout for name, layout in layouts.items() if name != "flat"})
    assert inverse.keys() == set().union(*(layout.parts() for layout in layouts.values()))
    for name, pieces in inverse.items():
        whole = TensorLayout(FILES[name].shape, pieces)
        for slices in SLICES:
            expected = reader(FILES)(name, slices)
            assert torch.equal(whole.read(slices, reader(move(FILES))), expected), (name, slices)


def test_a_scalar_and_an_unchanged_tensor() -> None:
    layout = TensorLayout.of("count", ())
    assert layout.is_same("count") and not layout.is_same("other") and layout.parts() == {"count"}
    assert layout.read(None, reader({"count": torch.tensor(7)})) == 7
    moved = torch.cat([TensorLayout.of("a", (2, 3))])
    assert isinstance(moved, TensorLayout) and moved.is_same("a")


def test_parts_of_several_types_are_read_without_rounding() -> None:
    values = {"low": torch.tensor([[1.5, 2.0]], dtype=torch.bfloat16), "high": torch.tensor([[1.0, 1e-8]])}
    both: Any = torch.cat([TensorLayout.of("low", (1, 2)), TensorLayout.of("high", (1, 2))])
    assert torch.equal(both.read(None, reader(values)), torch.tensor([[1.5, 2.0], [1.0, 1e-8]]))


@pytest.mark.parametrize("function", [lambda layout: torch.exp(layout), lambda layout: torch.add(layout, layout)])
def test_what_computes_values_is_refused(function: Callable[[TensorLayout], Any]) -> None:
    with pytest.raises(NotImplementedError):
        function(TensorLayout.of("a", (2, 3)))


@pytest.mark.parametrize("function", [torch.stack, torch.cat])
def test_shapes_that_do_not_fit_are_refused(function: Any) -> None:
    with pytest.raises(ValueError, match="tensors"):
        function([TensorLayout.of("a", (2, 3)), TensorLayout.of("b", (2, 4))])
