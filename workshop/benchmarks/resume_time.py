"""Time to resume a run, from process start to the first step, compared with one process that loads everything with torch.load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.config import Config, resolve
from overtone.finetune.storage import files
from workshop.benchmarks import _ranks, _table, _timing

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "tests" / "causal_lm"
TEXT = "she counted the boats in the harbour"
LOADS = 3
"""Times that one process loads the state, of which the median counts."""
COLUMNS = (
    "state, MiB",
    "ranks",
    "found and read, ms",
    "torch.load, ms",
    "read / torch.load",
    "start to first step, s",
    "by hand, s",
    "here / by hand",
)
NOTE = (
    "Weights and AdamW's two moments of a Llama, fp32. Read: the newest checkpoint is found, each byte of it is verified against its "
    "manifest, and each rank reads its slices. torch.load: one process reads a whole state dict and the optimizer's, with "
    "`weights_only`, verifies nothing, and copies them into model and optimizer. Start to first step: of `accelerate launch` here, which "
    "digests the base too, of `python` by hand; both import torch and transformers, the launcher torch once more. Processor time, of the "
    "launcher and the slowest rank: what one waits on a machine with a core for each, its disk's cache full. Median of {rounds} processes "
    "each, in turns; ratios: median (smallest–largest) of the rounds."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    widths, rounds = ([32], 1) if flags.quick else ([256, 512], 2)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for width in widths for row in measured(make(Path(folder) / str(width), width), rounds)]
    _table.publish("resume_time", flags, COLUMNS, rows, NOTE.format(rounds=rounds))


def make(folder: Path, width: int) -> Path:
    """A base and some text."""
    import torch
    from safetensors.torch import save
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(vocab_size=8192, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=4, num_attention_heads=4)
    tensors = dict(LlamaForCausalLM(shape).named_parameters())
    files.write_json(folder / "base" / "config.json", {**shape.to_dict(), "architectures": ["LlamaForCausalLM"]})
    files.write_bytes(folder / "base" / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    files.write_jsonl(folder / "train.jsonl", ({"text": TEXT} for _ in range(8)))
    return folder


def config_of(folder: Path) -> Config:
    """A run on what `make` left."""
    from tests.causal_lm.recipe import Options

    given = {
        "model.source": folder / "base", "data.train": folder / "train.jsonl", "run.dir": folder / "run", "parallel.strategy": "fsdp",
        "train.global_batch_tokens": 2 * len(TEXT), "train.micro_tokens": len(TEXT), "train.steps": 10**6,
    }  # fmt: skip
    return resolve(str(RECIPE), Options, [RECIPE / "config.yaml"], [(key, str(value)) for key, value in given.items()])


def measured(folder: Path, rounds: int) -> list[list[object]]:
    """A line for one rank and one for two."""
    state = by_ranks(folder, 1)["bytes"]  # a fresh start, which saves
    by_hand(folder)
    ways = {"hand": lambda: by_hand(folder), 1: lambda: by_ranks(folder, 1), 2: lambda: by_ranks(folder, 2)}
    found: dict[str | int, list[dict[str, Any]]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            found[way].append(ways[way]())
    return [[round(state / 2**20), ranks, *beside(found[ranks], found["hand"])] for ranks in (1, 2)]


def by_ranks(folder: Path, ranks: int) -> dict[str, Any]:
    (found,) = _ranks.launch("_resuming_of_ranks.py", ranks, folder, "resumed")
    return found


def by_hand(folder: Path) -> dict[str, Any]:
    command = [sys.executable, ROOT / "workshop" / "benchmarks" / "_resuming_by_hand.py", folder]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([str(word) for word in command], env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def beside(ours: list[dict[str, Any]], hand: list[dict[str, Any]]) -> list[str]:
    """The two comparisons, each as both figures and their ratio."""
    loads, firsts = ([[each[kind] for each in side] for side in (ours, hand)] for kind in ("load", "first"))
    return [
        *(f"{1000 * median(side):.0f}" for side in loads), _timing.ratio(*loads),
        *(f"{median(side):.1f}" for side in firsts), _timing.ratio(*firsts),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
