"""Tests of `overtone.recipes.language.gguf.tensor_check`: lost, infinite and otherwise stored numbers are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overtone.finetune.storage.gguf_files import read_header
from overtone.recipes.language.gguf import tensor_check
from tests.finetune.storage.gguf_samples import write_gguf

SCALE = np.frombuffer(np.float16(0.5).tobytes() + bytes(range(32)), "u1")
Q8 = np.tile(SCALE, (2, 3))
WIDE = np.ones((4, 8))


def problems(folder: Path, tensors: dict[str, Any], number_type: str, elements: int) -> list[str]:
    path = write_gguf(folder / "model.gguf", {}, tensors)
    return [*tensor_check.find_problems(path, read_header(path), number_type, elements)]


@pytest.mark.parametrize(
    ("tensors", "number_type", "elements"),
    [
        ({"a.weight": ("F16", WIDE), "norm.weight": ("F32", np.ones(8))}, "f16", 40),
        ({"a.weight": ("BF16", np.full((4, 8), 0x3F80)), "rope_freqs.weight": ("F32", np.ones(5))}, "bf16", 32),
        ({"a.weight": ("Q8_0", Q8), "b.weight": ("F16", WIDE)}, "q8_0", 2 * 96 + 32),
        ({"a.lora_a": ("F32", WIDE)}, "f32", 32),
    ],
)
def test_whole_files_have_no_problem(tmp_path: Path, tensors: dict[str, Any], number_type: str, elements: int) -> None:
    assert problems(tmp_path, tensors, number_type, elements) == []


def test_numbers_that_were_lost_are_counted(tmp_path: Path) -> None:
    assert problems(tmp_path, {"a.weight": ("F16", WIDE)}, "f16", 40) == ["it has 32 numbers, where the exported weights have 40"]


def test_another_type_is_named(tmp_path: Path) -> None:
    assert problems(tmp_path, {"a.weight": ("F16", WIDE)}, "bf16", 32) == ["a.weight is stored as F16, where bf16 was requested"]
    assert problems(tmp_path, {"a.weight": ("Q8_0", Q8)}, "f16", 192) == ["a.weight is stored as Q8_0, where f16 was requested"]


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_numbers_beyond_the_range_are_found(tmp_path: Path, kind: str, bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the last block of a tensor that is read in several."""
    monkeypatch.setattr(tensor_check, "BLOCK_BYTES", 68)
    stored = {
        "F32": lambda: np.array([[1.0] * 99 + [bad]]),
        "F16": lambda: np.array([[1.0] * 99 + [bad]]),
        "BF16": lambda: np.array([[0x3F80] * 99 + [int(np.array(bad, "<f4").view("<u4")) >> 16]]),
        "Q8_0": lambda: np.concatenate([np.tile(SCALE, 3), np.frombuffer(np.float16(bad).tobytes() + bytes(32), "u1")])[None],
    }[kind]()
    name = {"F32": "f32"}.get(kind, kind.lower())
    found = problems(tmp_path, {"a.weight": (kind, stored)}, name, 128 if kind == "Q8_0" else 100)
    assert found == [f"a.weight has values beyond the range of {kind}"]


def test_a_file_that_ends_early_is_found(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", {}, {"a.weight": ("F32", WIDE)})
    path.write_bytes(path.read_bytes()[:-4])
    header = read_header(path)
    assert "the file ends within a.weight" in [*tensor_check.find_problems(path, header, "f32", 32)]


def test_tensors_that_stay_in_f16_are_counted(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", {}, {"a": ("Q8_0", Q8), "b": ("F16", WIDE), "c": ("F32", WIDE)})
    assert tensor_check.count_unquantized(read_header(path)) == 1
