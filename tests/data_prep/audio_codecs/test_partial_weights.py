"""A part of a model is read without the other parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from overtone.data_prep.audio_codecs.partial_weights import read_partial_weights
from overtone.finetune.errors import UserError


def test_a_part_is_read_from_all_files_without_its_prefix(tmp_path: Path) -> None:
    save_file({"codec.a": torch.ones(2), "talker.a": torch.zeros(2)}, tmp_path / "one.safetensors")
    save_file({"codec.b": torch.full((3,), 2.0)}, tmp_path / "two.safetensors")
    found = read_partial_weights(sorted(tmp_path.iterdir()), "codec.")
    assert sorted(found) == ["a", "b"] and found["a"].tolist() == [1, 1] and found["b"].tolist() == [2, 2, 2]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "one.safetensors").write_bytes(b"no weights")
    with pytest.raises(UserError, match=r"one.safetensors cannot be read \(.*\); download the model again"):
        read_partial_weights(tmp_path.iterdir(), "codec.")
