"""Tests of `overtone.finetune.data.cached_predictions`: what is written is read, and nothing of another key or with a changed byte."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from overtone.finetune.data.cached_predictions import (
    CachedPredictions,
    CacheKey,
    StalePredictionsError,
    merge_parts,
    open_parts,
    write_part,
)
from overtone.finetune.data.cached_samples import RowPredictions
from overtone.finetune.errors import UserError

KEY = CacheKey(
    base="b",
    quantization="null",
    packed="p",
    data="d",
    samples="s",
    precision="fp32",
    device="cpu",
    batches="90",
    answers="its own",
    code="c",
)


def make_rows(*numbers: int, dtype: torch.dtype = torch.float32) -> list[RowPredictions]:
    """Row n has n predictions of its own, and one less with another row's answer."""
    return [RowPredictions(row, torch.arange(row, dtype=dtype) / 3, torch.arange(max(row - 1, 0), dtype=dtype) / 7) for row in numbers]


def merge(folder: Path, *parts: list[RowPredictions]) -> CachedPredictions:
    for number, rows in enumerate(parts):
        write_part(folder / "parts", number, KEY, rows)
    merge_parts(folder / "rows.reference", folder / "parts", KEY)
    return CachedPredictions(folder / "rows.reference", KEY)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parts_become_one_file_by_row(tmp_path: Path, dtype: torch.dtype) -> None:
    found = merge(tmp_path, make_rows(4, 2, dtype=dtype), make_rows(0, 3, 1, dtype=dtype))
    assert found.rows == {0, 1, 2, 3, 4} and not (tmp_path / "parts").exists()
    for expected in make_rows(0, 1, 2, 3, 4, dtype=dtype):
        each = found.read(expected.row)
        assert torch.equal(each.own, expected.own) and torch.equal(each.mismatched, expected.mismatched) and each.own.dtype == dtype
    assert found.index[:, 0].tolist() == [0, 1, 2, 3, 4] and found.bytes == found.path.stat().st_size


def test_the_file_is_the_same_for_any_parts(tmp_path: Path) -> None:
    found = [merge(tmp_path / name, *map(make_rows_of, parts)) for name, parts in (("one", [(0, 1, 2)]), ("two", [(2,), (1, 0)]))]
    assert found[0].path.read_bytes() == found[1].path.read_bytes()


def make_rows_of(numbers: tuple[int, ...]) -> list[RowPredictions]:
    return make_rows(*numbers)


@pytest.mark.parametrize(("name", "reason"), [
    ("base", "it is of another base"),
    ("quantization", "it was computed with model.quantization: null"),
    ("packed", "other layers of the base were packed to 4 bits: model.lora.targets is another one"),
    ("data", "it is of other data"),
    ("samples", "the tokenizer, the chat template or an option that changes them is another one"),
    ("precision", "it was computed with train.precision: fp32"),
    ("device", "it was computed on another type of device: cpu"),
    ("batches", "its rows were divided into other micro-batches"),
    ("answers", "it was computed for its own"),
    ("code", "it was computed by another version of the code"),
])  # fmt: skip
def test_a_file_with_another_key_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    path = merge(tmp_path, make_rows(1, 2)).path
    with pytest.raises(StalePredictionsError, match=reason):
        CachedPredictions(path, replace(KEY, **{name: "other"}))


def test_a_header_without_a_key_is_refused() -> None:
    assert KEY.find_difference(None) == "it is of another base" and KEY.find_difference({}) == "it is of another base"
    assert KEY.find_difference(asdict(KEY)) is None


def test_a_value_that_changes_during_the_run_is_refused(tmp_path: Path) -> None:
    found = merge(tmp_path, make_rows(2, 3))
    found.verify()
    content = bytearray(found.path.read_bytes())
    content[-1] ^= 1
    with found.path.open("r+b") as file:
        file.write(content)
    assert len(found.read(2).own) == 2
    with pytest.raises(UserError, match=rf"its cached reference was changed after it was written; delete {found.path}"):
        found.read(3)
    with pytest.raises(StalePredictionsError, match="was changed after it was written"):
        found.verify()


def test_a_short_file_is_refused(tmp_path: Path) -> None:
    path = merge(tmp_path, make_rows(2, 3)).path
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(StalePredictionsError, match="its cached reference cannot be read"):
        CachedPredictions(path, KEY).verify()
    path.write_bytes(b"")
    with pytest.raises(StalePredictionsError, match="it cannot be read"):
        CachedPredictions(path, KEY)


def test_a_part_of_another_key_or_with_damage_is_removed(tmp_path: Path) -> None:
    for number, key in enumerate((KEY, replace(KEY, base="other"), KEY)):
        write_part(tmp_path, number, key, make_rows(number + 2))
    os.truncate(tmp_path / "00000002", (tmp_path / "00000002").stat().st_size - 1)
    assert [part.rows for part in open_parts(tmp_path, KEY)] == [{2}]
    assert [path.name for path in tmp_path.iterdir()] == ["00000000"]
    assert open_parts(tmp_path / "missing", KEY) == []
