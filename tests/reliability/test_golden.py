"""Stored checkpoints are restored to the last bit, and a run resumes from them. `make_golden.py` made them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.errors import UserError
from tests.ledger import record
from tests.reliability import holdings, victims
from tests.reliability.make_golden import RANKS, RECIPE, SAVED, STEPS, TRAINED, arguments

FOLDERS = sorted((victims.ROOT / RECIPE).glob("format-*"))
CLOSE = 1e-5
"""Of losses, relative: another version of torch may round in another order."""


def test_each_format_has_a_golden_checkpoint() -> None:
    assert len(FOLDERS) == checkpoint.FORMAT
    assert [path.name for path in FOLDERS] == [f"format-{number}" for number in range(1, checkpoint.FORMAT + 1)]


def expected(folder: Path, trained: str) -> dict[str, Any]:
    return json.loads((folder / "expected.json").read_text())[trained]


@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_golden_checkpoint_is_restored_exactly_and_resumed(folder: Path, trained: str, tmp_path: Path) -> None:
    name, recorded = f"step-{SAVED:08d}", expected(folder, trained)
    run, witness = tmp_path / "run", tmp_path / "witness"
    shutil.copytree(folder / trained / name, run / "checkpoints" / name)
    assert checkpoint.find_problem(run / "checkpoints" / name) is None
    codes = victims.wait(holdings.begin(witness, RANKS, arguments(trained, run)))
    assert codes == [0] * RANKS, victims.said(witness)
    assert holdings.read(witness, "loaded", SAVED) == recorded["tensors"] and len(recorded["tensors"]) > 3 * 8
    assert victims.rows(witness)[SAVED] == recorded["rows"], "the order of the samples belongs to the format too"
    losses = victims.losses(run)
    assert [step for step, _, _ in losses] == list(range(SAVED + 1, STEPS + 1))
    assert [loss for _, loss, _ in losses] == pytest.approx(recorded["losses"], rel=CLOSE)
    record("a checkpoint in the repository: restored bit for bit, and resumed", 1)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """It is whole, so passing it over as damaged would quietly redo what it holds."""
    newer = tmp_path / "run" / "checkpoints" / f"step-{SAVED:08d}"
    shutil.copytree(FOLDERS[-1] / "full" / newer.name, newer)
    number = checkpoint.FORMAT + 1
    manifest = checkpoint.unseal((newer / "manifest.json").read_bytes())
    (newer / "manifest.json").write_bytes(checkpoint.seal({**manifest, "format": number}))
    with pytest.raises(UserError, match=rf"checkpoint format {number}, but this version reads format {checkpoint.FORMAT}; use the version"):
        checkpoint.find_newest_valid(tmp_path / "run")
    ranks = victims.start(tmp_path / "witness", 1, arguments("full", tmp_path / "run"))
    assert victims.wait(ranks) == [2] and f"checkpoint format {number}" in victims.said(tmp_path / "witness")
