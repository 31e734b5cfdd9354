"""DoRA, rsLoRA, four-bit weights and adapters of experts train the same on one process and on shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from tests.causal_lm.recipe import write_base
from tests.launch.launching import ROOT, launch

ADAPTERS: dict[str, tuple[Literal["wide", "experts"], dict[str, str]]] = {
    "dora": ("wide", {"model.lora": "{rank: 3, alpha: 6, dora: true, rslora: true}"}),
    "nf4": ("wide", {"model.lora": "{rank: 3, alpha: 6}", "model.quantization": "nf4"}),
    "experts": ("experts", {"model.lora": "{rank: 3, alpha: 6, targets: all-linear}"}),
}
"""Base and overrides of each case."""
STRATEGIES = {1: ("ddp",), 2: ("fsdp", "zero1")}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_sharded_adapters_give_the_losses_of_one_process(tmp_path: Path, precision: str) -> None:
    bases = {kind: write_base(tmp_path / kind, kind) for kind, _ in ADAPTERS.values()}
    rows = [{"text": "she counted the boats "[:length]} for length in (22, 9, 14, 5, 18, 11)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = {"data.train": tmp_path / "train.jsonl", "train.micro_tokens": 30, "train.steps": 5}
    found: dict[str, list[list[float]]] = {name: [] for name in ADAPTERS}
    for processes, strategies in STRATEGIES.items():
        cases = {f"{name}-{strategy}-{processes}": (name, strategy) for name in ADAPTERS for strategy in strategies}
        todo = [
            {
                "name": case,
                "recipe": str(ROOT / "tests" / "causal_lm"),
                "overrides": {
                    key: str(value)
                    for key, value in {
                        **common, **ADAPTERS[name][1], "model.source": bases[ADAPTERS[name][0]], "run.dir": tmp_path / case,
                        "parallel.strategy": strategy, "train.lr": 0.02,
                        "train.precision": precision,
                    }.items()
                },
            }
            for case, (name, strategy) in cases.items()
        ]  # fmt: skip
        (tmp_path / "cases.json").write_text(json.dumps(todo))
        launch("cpu", processes, "tests/launch/first_steps.py", tmp_path / "cases.json")
        for case, (name, _) in cases.items():
            found[name].append(json.loads((tmp_path / f"{case}.json").read_text())["losses"])
    for name, (alone, *sharded) in found.items():
        assert len(alone) == 5 and alone[0] - alone[-1] > 0.3, f"{name} learns"
        for losses in sharded:
            assert losses == pytest.approx(alone, rel=2e-5 if precision == "fp32" else 3e-3)
