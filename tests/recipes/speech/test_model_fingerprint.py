"""A model's key changes with its files."""

from __future__ import annotations

import os
from pathlib import Path

from overtone.recipes.speech.model_fingerprint import compute_model_key


def test_replacing_the_model_files_changes_the_model_key(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"1")
    before = compute_model_key(tmp_path)
    os.utime(weights, (1, 1))
    touched = compute_model_key(tmp_path)
    assert before != touched == compute_model_key(tmp_path)
    weights.write_bytes(b"2")
    os.utime(weights, (1, 1))
    assert compute_model_key(tmp_path) != touched, "the same size and times, as `rsync -t` leaves them"
