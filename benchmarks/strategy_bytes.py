"""Bytes of every strategy on each rank, beside the formula: what lasts (weights, gradients, AdamW's state) and what passes at the peak.

What lasts is counted when the optimizer has updated. What passes (gathered weights, and gradients before their reduction) is counted at
each gathering and at each end of a block's backward: the tensors that are held, not what an allocator keeps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _table
from finetune import files
from finetune.config import Config, resolve

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "tests" / "causal_lm"
STRATEGIES = ("ddp", "zero1", "zero2", "fsdp", "hsdp")
COLUMNS = ("strategy", "compute", "ranks N", "lasting", "formula", "ratio", "passing", "formula", "ratio")

NOTE = (
    "Bytes of the fullest rank. A small Llama whose blocks hold nearly all of its parameters. `ddp` counts its gradients twice: they wait "
    "whole for the step's last micro-batch and are then replaced by the reduced ones, so no more than one of both is there."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), [2] if flags.quick else [1, 2, 4])
    _table.publish("strategy_bytes", flags, COLUMNS, [row(each) for each in found], NOTE)


def measured(folder: Path, worlds: list[int]) -> list[dict[str, Any]]:
    """Each strategy in each precision on each world, strategies together."""
    make(folder)
    found = [each for ranks in worlds for each in launch(ranks, folder)]
    return sorted(found, key=lambda each: (STRATEGIES.index(each["strategy"]), each["precision"] == "bf16", each["ranks"]))


def make(folder: Path) -> None:
    """A base of 1.7 M parameters, and text."""
    import torch
    from safetensors.torch import save
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=10, num_attention_heads=4)
    model = LlamaForCausalLM(shape)
    files.write_json(folder / "base" / "config.json", shape.to_dict())
    files.write_bytes(folder / "base" / "model.safetensors", save(dict(model.named_parameters()), metadata={"format": "pt"}))
    files.write_jsonl(folder / "train.jsonl", ({"text": "she counted the boats " * (1 + row % 3)} for row in range(16)))


def config_of(folder: Path, strategy: str, precision: str, ranks: int) -> Config:
    """A run on what `make` left; two steps of at least two micro-batches a rank."""
    from tests.causal_lm.recipe import Options

    given = {
        "model.source": folder / "base",
        "data.train": folder / "train.jsonl",
        "run.dir": folder / f"{strategy}-{precision}-{ranks}",
        "train.precision": precision,
        "train.micro_tokens": 70,
        "train.global_batch_tokens": 10**6,
        "train.steps": 2,
        "parallel.strategy": strategy,
        "parallel.replicate": 2 if strategy == "hsdp" else 1,
    }
    return resolve(str(RECIPE), Options, [RECIPE / "config.yaml"], [(key, str(value)) for key, value in given.items()])


def launch(ranks: int, folder: Path) -> list[dict[str, Any]]:
    accelerate = Path(sys.executable).parent / "accelerate"
    config, script = ROOT / "configs" / "cpu.yaml", ROOT / "benchmarks" / "_bytes_of_ranks.py"
    command = [accelerate, "launch", "--config_file", config, "--num_processes", ranks, script, folder]
    subprocess.run([str(word) for word in command], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, stdout=sys.stderr)
    return json.loads((folder / f"bytes-{ranks}.json").read_text())


def sharing(found: dict[str, Any]) -> int:
    """Ranks that share one copy of the model."""
    return {"ddp": 1, "hsdp": found["ranks"] // found["copies"]}.get(found["strategy"], found["ranks"])


def lasting_formula(found: dict[str, Any]) -> float:
    """Master, gradient and two moments, 4 bytes each, over the ranks that share them."""
    return 16 * found["parameters"] / sharing(found)


def passing_formula(found: dict[str, Any]) -> float:
    """Gathered weights (4 bytes in fp32, 2 in bf16) and whole gradients at their peaks.

    The root (embedding, head, last norm) stays gathered for the whole step; while a block is in use the next one is on its way.
    """
    weight = 4 if found["precision"] == "fp32" else 2
    everything, root, block = found["parameters"], found["root"], found["block"]
    in_use = root + (2 if sharing(found) > 1 else 1) * block
    gathered = in_use if found["strategy"] in ("fsdp", "hsdp") else everything
    whole = 4 * everything if found["strategy"] in ("ddp", "zero1") else weight * (root + block)
    return weight * gathered + whole


def row(found: dict[str, Any]) -> list[str]:
    lasting, passing = max(sum(each[:3]) for each in found["each"]), max(sum(each[3:]) for each in found["each"])
    right = lasting_formula(found), passing_formula(found)
    first = [found["strategy"], found["precision"], str(found["ranks"])]
    return [*first, *numbers(lasting, right[0]), *numbers(passing, right[1])]


def numbers(counted: int, formula: float) -> list[str]:
    return [f"{counted:,}", f"{round(formula):,}", f"{counted / formula:.4f}"]


if __name__ == "__main__":
    main()
