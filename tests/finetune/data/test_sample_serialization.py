"""A sample is read from its record bit by bit, and invalid records are refused."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from overtone.finetune.data import sample_serialization
from overtone.finetune.recipe import Sample

EDGES = ((0, 255), (0, 256), (-1, 0), (-(2**15), 2**15 - 1), (0, 2**15), (-(2**31), 2**31 - 1), (0, 2**31), (-(2**63), 2**63 - 1))
SAMPLES: dict[str, Sample] = {
    "a chat": {"ids": torch.tensor([151_643, 0, 7]), "supervised": torch.tensor([False, True, True])},
    "edges": {
        str(low): torch.tensor([low, high]) for low, high in ((0, 255), (0, 256), (-1, 0), (-(2**15), 2**31 - 1), (-(2**63), 2**63 - 1))
    },
    "no values": {"none": torch.zeros(0, 3, dtype=torch.int64), "one": torch.tensor(-100), "ø": torch.zeros((), dtype=torch.bool)},
    "of every type": {name: torch.arange(5).to(dtype) for name, dtype in sample_serialization.TYPES.items()},
    "not contiguous": {"turned": torch.arange(12).reshape(3, 4).t(), "a part": torch.arange(9)[::2], "wide": torch.ones(1).expand(2, 3)},
    "bits of floats": {"floats": torch.tensor([0.0, -0.0, float("nan"), float("inf"), 1e-45])},
    "nothing": {},
}


def same(one: Tensor, other: Tensor) -> bool:
    """The same bits, type and shape."""
    flat = [each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*flat)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_comes_back_bit_for_bit(name: str) -> None:
    sample = SAMPLES[name]
    found = sample_serialization.decode(bytearray(sample_serialization.encode(sample)))
    assert [*found] == [*sample], "in the same order"
    assert all(same(found[name], sample[name]) for name in sample)


def test_integers_are_stored_in_the_smallest_type() -> None:
    frames = {"codes": torch.randint(0, 2048, (1000, 16)), "mask": torch.ones(1000, dtype=torch.bool)}
    assert len(sample_serialization.encode(frames)) < 1000 * (16 * 2 + 1) + 100
    ids = torch.full((1000,), 150_000)
    assert len(sample_serialization.encode({"ids": ids})) < 4100


@pytest.mark.parametrize("value", [3, [1, 2], torch.zeros(2, dtype=torch.complex64)])
def test_values_of_unknown_types_are_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match=r"`read` returned 'ids' as .*; a sample is a dict of tensors"):
        sample_serialization.encode({"ids": value})  # type: ignore[dict-item]  # what a recipe may do


@pytest.mark.parametrize("sample", [{1: torch.zeros(2)}, {"\ud800": torch.zeros(2)}, {"deep": torch.zeros((1,) * 16)}])
def test_samples_that_could_not_be_read_back_are_refused_when_written(sample: Sample) -> None:
    with pytest.raises(TypeError, match=r"`read` returned a sample that cannot be cached: .*(describes no tensor|half of a character)"):
        sample_serialization.encode(sample)


def head(*tensors: object) -> bytes:
    return json.dumps(tensors).encode() + b"\n"


MADE_UP = {
    "empty": b"",
    "no end of its line": b"[]",
    "no JSON": b"\x80\x04\x95.\n",
    "no list": b"{}\n",
    "deep": b"[" * 3000 + b"]" * 3000 + b"\n",
    "a name too few": head(["int64", "int64", [1]]) + bytes(8),
    "an unknown type": head(["a", "object", "object", [1]]) + bytes(8),
    "booleans as stored": head(["a", "bool", "bool", [1]]) + bytes(8),
    "more than there is": head(["a", "int64", "int64", [2]]) + bytes(8),
    "far more": head(["a", "int64", "int64", [2**30, 2**30, 2**30]]) + bytes(8),
    "less than nothing": head(["a", "int64", "int64", [-1]]) + bytes(8),
    "half a value": head(["a", "int64", "int64", [0.5]]) + bytes(8),
    "true": head(["a", "int64", "int64", [True]]) + bytes(8),
    "none of something huge": head(["a", "int64", "int64", [0, 2**62]]),
    "many dimensions": head(["a", "int64", "int64", [1] * 70]) + bytes(8),
    "one name twice": head(["a", "uint8", "uint8", [1]], ["a", "uint8", "uint8", [1]]) + bytes(16),
    "bytes over": head(["a", "uint8", "uint8", [1]]) + bytes(9),
}


@pytest.mark.parametrize("name", MADE_UP)
def test_a_made_up_record_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        sample_serialization.decode(bytearray(MADE_UP[name]))


@given(st.data())
def test_a_damaged_record_is_refused_or_gives_tensors_of_its_own_size(data: st.DataObject) -> None:
    record = bytearray(sample_serialization.encode(SAMPLES["a chat"]))
    for _ in range(data.draw(st.integers(1, 4))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    record = record[: data.draw(st.integers(0, len(record)))] if data.draw(st.booleans()) else record
    try:
        found = sample_serialization.decode(record)
    except ValueError:
        return
    assert sum(tensor.numel() for tensor in found.values()) <= len(record)
