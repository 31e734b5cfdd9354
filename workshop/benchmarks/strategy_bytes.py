"""Bytes on each rank under every strategy, compared with the formula: persistent (weights, gradients, AdamW) and transient at the peak.

Persistent bytes are counted after the optimizer's update. Transient bytes (gathered weights, and gradients before their reduction) are
counted at each gather and at the end of the backward pass of each block, or of each bucket with `ddp`. Only live tensors count, not the
memory that an allocator reserves.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.config import Config, resolve
from overtone.finetune.storage import files
from workshop.benchmarks import _ranks, _table

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "tests" / "causal_lm"
STRATEGIES = ("ddp", "zero1", "zero2", "fsdp", "hsdp", "fsdp × 2")
"""`× 2`: two neighbours share each matrix (`parallel.tensor`)."""
VOCABULARIES = (256, 1536)
"""Words: of a small one the root has embedding and head, of a large one each is a unit of its own."""
COLUMNS = ("strategy", "words", "compute", "ranks N", "lasting", "formula", "ratio", "passing", "formula", "ratio")

NOTE = (
    "Bytes of the fullest rank. A small Llama whose blocks hold nearly all of its parameters, or one whose embedding and head "
    "are each larger than a block. Under `ddp`, what passes are bf16 copies of weights, and gradients that wait for the others of their "
    "bucket of 25 MiB, which has room for all of this model's; one process in fp32 has neither."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), [2] if flags.quick else [1, 2, 4])
    _table.publish("strategy_bytes", flags, COLUMNS, [row(each) for each in found], NOTE)


def measured(folder: Path, worlds: list[int]) -> list[dict[str, Any]]:
    """Each strategy in each precision on each world, strategies together."""
    make(folder)
    found = [each for ranks in worlds for each in _ranks.launch("_bytes_of_ranks.py", ranks, folder, "bytes")]
    return sorted(found, key=lambda each: (STRATEGIES.index(each["strategy"]), each["words"], each["precision"] == "bf16", each["ranks"]))


def make(folder: Path) -> None:
    """A base of 1.7 M parameters and one of 2.0 M, and text."""
    import torch
    from safetensors.torch import save
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    for words in VOCABULARIES:
        shape = LlamaConfig(vocab_size=words, hidden_size=128, intermediate_size=256, num_hidden_layers=10, num_attention_heads=4)
        model = LlamaForCausalLM(shape)
        files.write_json(folder / f"base-{words}" / "config.json", shape.to_dict())
        files.write_bytes(folder / f"base-{words}" / "model.safetensors", save(dict(model.named_parameters()), metadata={"format": "pt"}))
    files.write_jsonl(folder / "train.jsonl", ({"text": "she counted the boats " * (1 + row % 3)} for row in range(16)))


def cases() -> list[tuple[str, int, str]]:
    """(strategy, words, precision); the large vocabulary where a unit of its own makes a difference."""
    small = [(strategy, VOCABULARIES[0], precision) for strategy in STRATEGIES for precision in ("fp32", "bf16")]
    return small + [("fsdp", VOCABULARIES[1], precision) for precision in ("fp32", "bf16")]


def config_of(folder: Path, strategy: str, words: int, precision: str, ranks: int) -> Config:
    """A run on what `make` left; two steps of at least two micro-batches a rank."""
    from tests.causal_lm.recipe import Options

    given = {
        "model.source": folder / f"base-{words}",
        "data.train": folder / "train.jsonl",
        "run.dir": folder / f"{strategy}-{words}-{precision}-{ranks}",
        "train.precision": precision,
        "train.micro_tokens": 70,
        "train.global_batch_tokens": 10**6,
        "train.steps": 2,
        "parallel.strategy": strategy.partition(" ")[0],
        "parallel.tensor": 2 if strategy.endswith("× 2") else 1,
        "parallel.replicate": 2 if strategy == "hsdp" else 1,
    }
    return resolve(str(RECIPE), Options, [RECIPE / "config.yaml"], [(key, str(value)) for key, value in given.items()])


def sharing(found: dict[str, Any]) -> int:
    """Ranks that share one copy of the model."""
    return {"ddp": 1, "hsdp": found["ranks"] // found["copies"]}.get(found["strategy"], found["ranks"])


def lasting_formula(found: dict[str, Any]) -> float:
    """Master, gradient and two moments, 4 bytes each, over the ranks that share them; neighbours have copies of the norms."""
    return 16 * (found["parameters"] / sharing(found) + found["alike"] * (found["tensor"] - 1) / found["ranks"])


def passing_formula(found: dict[str, Any]) -> float:
    """Gathered weights (4 bytes in fp32, 2 in bf16) and whole gradients at their peaks.

    The root (the last norm, a small embedding and head) stays gathered for the whole step; while a unit (a block, a large embedding or
    head) is in use the next one is on its way. Of a block under tensor parallelism, a rank gathers its part. The gradient of an embedding
    in the root comes when those of the blocks are reduced.
    """
    weight = 4 if found["precision"] == "fp32" else 2
    everything, root, block, largest = found["parameters"], found["root"], found["block"], found["largest"]
    if found["strategy"] == "ddp":
        copies, alone = (weight if weight == 2 else 0), weight == 4 and found["ranks"] == 1
        return copies * everything + (0 if alone else weight * everything)
    in_use = root + largest + (block if sharing(found) > found["tensor"] else 0)
    gathered = everything if found["strategy"] in ("zero1", "zero2") else in_use
    whole = 4 * everything if found["strategy"] == "zero1" else weight * (root - found["embedding"] + largest)
    return weight * gathered + whole


def row(found: dict[str, Any]) -> list[str]:
    lasting, passing = max(sum(each[:3]) for each in found["each"]), max(sum(each[3:]) for each in found["each"])
    right = lasting_formula(found), passing_formula(found)
    first = [found["strategy"], f"{found['words']:,}", found["precision"], str(found["ranks"])]
    return [*first, *numbers(lasting, right[0]), *numbers(passing, right[1])]


def numbers(counted: int, formula: float) -> list[str]:
    return [f"{counted:,}", f"{round(formula):,}", f"{counted / formula:.4f}" if formula else "–"]


if __name__ == "__main__":
    main()
