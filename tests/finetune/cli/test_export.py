"""`overtone export`: arguments, exit codes, and URLs as source and target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.cli import export
from overtone.finetune.exporting.export import export as export_run
from overtone.finetune.exporting.model_card_metadata import describe_target
from overtone.finetune.storage import remote
from tests.finetune.exporting.test_export import base_of, everything, runs

__all__ = ["runs"]


def test_a_remote_copy_is_exported_to_a_url(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    source, target = f"file://{tmp_path}/copies/me", f"file://{tmp_path}/models/mine"
    remote.upload(checkpoint.find(runs["full"]), f"{source}/step-00000003", "manifest.json")
    assert export.main([source, "--to", target, "--base", str(base_of(runs["full"]))]) == 0
    expected = everything(export_run(runs["full"], tmp_path / "here"))
    made = {name: remote.read(f"{target}/{name}") for name in remote.list_files(target)}
    assert made.keys() == expected.keys() and made["model.safetensors"] == expected["model.safetensors"]
    assert json.loads(made["overtone.json"])["checkpoint"] == "copies/me/step-00000003"
    assert export.main([source, "--to", target]) == 2 and [*(tmp_path / "temporary").iterdir()] == []


def test_the_verb_exports_a_run(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out"
    assert export.main([str(runs["full"]), "--to", str(target), "--dtype", "bf16", "--step", "2", "--format", "plain"]) == 0
    assert capsys.readouterr().out == (f"{target} is ready\nnext: overtone generate --model {target}\n")
    assert target.is_dir()
    assert export.main([str(runs["full"]), "--to", str(target)]) == 2
    assert capsys.readouterr().err.startswith("error: --to ")
    half = tmp_path / "half"
    assert export.main([str(runs["full"]), "--to", str(half), "--strength", "0.5"]) == 0
    assert everything(half) == everything(export_run(runs["full"], tmp_path / "other", strength=0.5, name=describe_target(half)))
    capsys.readouterr()
    assert export.main([str(runs["full"])]) == 2 and "--to" in capsys.readouterr().err
    assert export.main([str(runs["full"]), "--to", str(target), "--dtype", "int4"]) == 2 and "bf16" in capsys.readouterr().err
