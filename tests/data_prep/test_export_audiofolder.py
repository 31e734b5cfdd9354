"""An exported AudioFolder is loaded by `datasets`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.data_prep.cli import export
from overtone.finetune.storage import demo_models

SAMPLE = demo_models.data_folder() / "sample"
RECORDINGS = ("rms/railway.ogg", "rms/workshop.wav", "slt/harbour.flac", "slt/kitchen.mp3")


def test_datasets_loads_what_was_exported(tmp_path: Path) -> None:
    """Its splits, its rows, and the names of their clips: to make sounds of these, it needs torchcodec and an FFmpeg."""
    datasets = pytest.importorskip("datasets", reason="`make test-chat` has it; test_export_formats.py checks the documented rules here")
    rows = [{"audio": name, "text": f"Of {name}.", "speaker": name[:3], "language": "english"} for name in RECORDINGS]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[1:]))
    (tmp_path / "val.jsonl").write_text(json.dumps(rows[0]))
    assert export.main([str(tmp_path), "--root", str(SAMPLE), "--as", "audiofolder", "--to", str(tmp_path / "out")]) == 0
    features = datasets.Features({name: datasets.Value("string") for name in ("file_name", "text", "speaker", "language")})
    loaded = datasets.load_dataset("audiofolder", data_dir=str(tmp_path / "out"), features=features, cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 3, "validation": 1}
    for split, read in ((split, read) for split, rows in loaded.items() for read in rows):
        (row,) = (row for row in rows if row["text"] == read["text"])
        assert (read["speaker"], read["language"]) == (row["speaker"], "english")
        assert (tmp_path / "out" / split / read["file_name"]).read_bytes() == (SAMPLE / row["audio"]).read_bytes()
