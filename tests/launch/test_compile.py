"""Compiled blocks train as the plain ones do, sharded and recomputed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.causal_lm.recipe import write_base
from tests.launch.launching import ROOT, launch

RECIPE = ROOT / "tests" / "causal_lm"
CASES = {
    "plain": {"parallel.strategy": "fsdp"},
    "compiled": {"parallel.strategy": "fsdp", "train.compile": "true"},
    "recomputed": {"parallel.strategy": "zero2", "train.compile": "true", "train.activation_checkpointing": "full"},
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_blocks_give_the_same_losses(tmp_path: Path) -> None:
    write_base(tmp_path / "base", "llama")
    rows = [{"text": "she counted the boats "[:length]} for length in (22, 9, 14, 5, 18, 11)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = {"model.source": tmp_path / "base", "data.train": tmp_path / "train.jsonl", "train.micro_tokens": 30, "train.steps": 4}
    todo = [
        {"name": name, "recipe": str(RECIPE), "overrides": {k: str(v) for k, v in {**common, **case, "run.dir": tmp_path / name}.items()}}
        for name, case in CASES.items()
    ]
    (tmp_path / "cases.json").write_text(json.dumps(todo))
    launch("cpu", 2, "tests/launch/first_steps.py", tmp_path / "cases.json")
    losses = {name: json.loads((tmp_path / f"{name}.json").read_text())["losses"] for name in CASES}
    assert len(losses["plain"]) == 4
    assert losses["compiled"] == pytest.approx(losses["plain"], rel=0, abs=5e-6)
    assert losses["recomputed"] == pytest.approx(losses["plain"], rel=0, abs=5e-6)
