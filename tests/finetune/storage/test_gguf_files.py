"""Tests of `overtone.finetune.storage.gguf_files`: headers are read, damaged files refused, copies differ as requested."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, gguf_files
from tests.finetune.storage.gguf_samples import write_gguf

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "größer",
    "llama.block_count": 2,
    "some.negative": -5,
    "some.fraction": 0.5,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.tokens": ["a", "Ġb", "\udcff"],
    "tokenizer.ggml.scores": [0.0, -1.0, -2.5],
    "tokenizer.ggml.token_type": [1, 1, 3],
}
TENSORS = {"wide": ("F16", np.arange(6.0).reshape(2, 3)), "one": ("F32", np.array([1.5])), "last": ("F32", np.arange(40.0).reshape(5, 8))}


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "sample.gguf", METADATA, TENSORS)


@pytest.mark.parametrize("version", [2, 3])
def test_a_header_is_read_as_it_was_written(tmp_path: Path, version: int) -> None:
    path = write_gguf(tmp_path / "sample.gguf", METADATA, TENSORS, version)
    header = gguf_files.read_header(path)
    assert header.metadata == METADATA
    assert [(tensor.name, tensor.shape, tensor.type, tensor.elements) for tensor in header.tensors] == [
        ("wide", (2, 3), 1, 6),
        ("one", (1,), 0, 1),
        ("last", (5, 8), 0, 40),
    ]
    content, place = path.read_bytes(), header.data_start + header.tensors[2].offset
    assert np.frombuffer(content[place : place + 160], "<f4").tolist() == [float(number) for number in range(40)]
    assert gguf_files.is_gguf(path)


def test_other_files_are_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGU")
    assert not gguf_files.is_gguf(tmp_path / "a.gguf") and not gguf_files.is_gguf(tmp_path / "none") and not gguf_files.is_gguf(tmp_path)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda data: data[:4] + struct.pack("<I", 1) + data[8:], "it has version 1"),
        (lambda data: b"PK\3\4" + data[4:], "does not begin with GGUF"),
        (lambda data: data[:100], "ends within its header"),
        (lambda data: data[:8] + struct.pack("<Q", 2**60) + data[16:], "it claims 1,152,921,504,606,846,976 tensors"),
        (lambda data: data[:24] + struct.pack("<Q", 2**40) + data[32:], "a text of its header claims 1,099,511,627,776 bytes"),
        (lambda data: data.replace(struct.pack("<IIQ", 9, 8, 3), struct.pack("<IIQ", 9, 8, 2**50)), "a list of its metadata claims"),
        (
            lambda data: data.replace(struct.pack("<IIQ", 9, 8, 3), struct.pack("<IIQ", 9, 9, 3)),
            "a list of its metadata has values of type 9",
        ),
        (lambda data: data.replace(struct.pack("<I?", 7, True), struct.pack("<I?", 99, True)), "type 99, which is unknown"),
    ],
)
def test_a_damaged_file_is_refused(sample: Path, damage: Any, complaint: str) -> None:
    before = sample.read_bytes()
    sample.write_bytes(damage(before))
    assert sample.read_bytes() != before
    with pytest.raises(UserError, match=f"sample.gguf cannot be read as a GGUF file .*{complaint}"):
        gguf_files.read_header(sample)


def test_a_copy_differs_in_the_given_metadata_alone(sample: Path, tmp_path: Path) -> None:
    changes = {
        "general.name": "other",
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.scores": [-1.0, -0.5, 0.0, 2.0],
        "tokenizer.ggml.token_type": [1, 3, -4],
    }
    digest = gguf_files.copy_with_metadata(sample, tmp_path / "copy.gguf", changes)
    before, after = gguf_files.read_header(sample), gguf_files.read_header(tmp_path / "copy.gguf")
    assert after.metadata == METADATA | changes and after.tensors == before.tensors
    assert after.data_start % 32 == 0 and digest == files.digest(tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes()[after.data_start :] == sample.read_bytes()[before.data_start :]


def test_large_data_is_copied_in_blocks(sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_files, "BLOCK_BYTES", 7)
    gguf_files.copy_with_metadata(sample, tmp_path / "copy.gguf", {})
    assert (tmp_path / "copy.gguf").read_bytes() == sample.read_bytes()
