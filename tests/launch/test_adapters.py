"""DoRA, rsLoRA and four-bit weights train alike on one process and on shards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.causal_lm.recipe import write_base
from tests.launch.launching import ROOT, launch

ADAPTERS = {
    "dora": {"model.lora": "{rank: 3, alpha: 6, dora: true, rslora: true}"},
    "nf4": {"model.lora": "{rank: 3, alpha: 6}", "model.quantization": "nf4"},
}
STRATEGIES = {1: ("ddp",), 2: ("fsdp", "zero1")}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_sharded_adapters_give_the_losses_of_one_process(tmp_path: Path, precision: str) -> None:
    write_base(tmp_path / "base", "wide")
    rows = [{"text": "she counted the boats "[:length]} for length in (22, 9, 14, 5, 18, 11)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = {"model.source": tmp_path / "base", "data.train": tmp_path / "train.jsonl", "train.micro_tokens": 30, "train.steps": 5}
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
                        **common, **ADAPTERS[name], "run.dir": tmp_path / case, "parallel.strategy": strategy, "train.lr": 0.02,
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
