"""Growth of cost: step time with the sequence length and the number of ranks, start-up time and memory with the rows of the data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.config import Config, resolve
from overtone.finetune.storage import files
from workshop.benchmarks import _ranks, _table, _timing

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "tests" / "causal_lm"
POSITIONS = 2048
"""Positions of a micro-batch, whatever the length of its sequences."""
MICROS = 4
"""Micro-batches of a step on all ranks together."""
LENGTHS = [128, 256, 512, 1024, 2048]
SIZES = [10**3, 10**4, 10**5, 10**6]
COLUMNS = ("what grows", "to", "measured", "figure", "of the first")
NOTE = (
    "Sequence length: micro-batches of 2,048 positions in ever longer sequences through a Llama of 2 layers, 64 wide, where attention "
    "weighs as much as it ever does; processor time, {rounds} rounds in turns; last column: median (smallest–largest) of the rounds. Rows: "
    "a fresh process each time, without torch; its processor time, and the peak of its resident memory above its imports, with 1,000 "
    "rows read; `order` has the memory that is the process' own. Reopening digests the file and its index, so its time grows with their "
    "bytes. An index holds 64 bytes a row. Ranks: fsdp, the same step of {micros} micro-batches, medians of {rounds}. Tokens a "
    "second are of a clock, on {cores} cores for all ranks and whatever else runs: more ranks than cores cannot gain. Processor time is of "
    "all ranks together: what sharding and agreeing cost is its growth."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    lengths, sizes, ranks, rounds = ([128, 256], [10**3], [1, 2], 1) if flags.quick else (LENGTHS, SIZES, [1, 2, 4], 9)
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        found = [
            *measure_lengths(Path(folder), lengths, rounds),
            *measure_rows(Path(folder), sizes),
            *measure_ranks(Path(folder), ranks, rounds),
        ]
    _table.publish("growth", flags, COLUMNS, found, NOTE.format(rounds=rounds, micros=MICROS, cores=os.cpu_count()))


def make(folder: Path) -> None:
    """A small Llama, and text."""
    import torch
    from safetensors.torch import save
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4)
    tensors = dict(LlamaForCausalLM(shape).named_parameters())
    files.write_json(folder / "base" / "config.json", shape.to_dict())
    files.write_bytes(folder / "base" / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    files.write_jsonl(folder / "train.jsonl", ({"text": "a" * LENGTHS[0]} for _ in range(MICROS * POSITIONS // LENGTHS[0])))


def config_of(folder: Path, run: str) -> Config:
    """A run on what `make` left: all rows are one step of `MICROS` micro-batches."""
    from tests.causal_lm.recipe import Options

    given = {
        "model.source": folder / "base", "data.train": folder / "train.jsonl", "run.dir": folder / run, "parallel.strategy": "fsdp",
        "train.micro_tokens": POSITIONS, "train.global_batch_tokens": MICROS * POSITIONS, "train.steps": 10**6,
    }  # fmt: skip
    return resolve(str(RECIPE), Options, [RECIPE / "config.yaml"], [(key, str(value)) for key, value in given.items()])


def measure_lengths(folder: Path, lengths: list[int], rounds: int) -> Iterator[list[object]]:
    """Positions a second at each length of the sequences."""
    from overtone.finetune.distributed import process_group

    joined = process_group.join((), folder)
    taken = _timing.time_in_turns(steps_of(joined, folder, lengths), rounds, _timing.WARM_UP)
    process_group.leave()
    first = taken[str(lengths[0])]
    for length in lengths:
        seconds = taken[str(length)]
        # Positions a second are one over seconds, so the first one's time stands above.
        yield ["sequence length", f"{length:,}", "positions / s", f"{POSITIONS / median(seconds):,.0f}", _timing.ratio(first, seconds)]


def steps_of(joined: Any, folder: Path, lengths: list[int]) -> dict[str, Callable[[], object]]:
    """A step on a micro-batch of sequences of each length."""
    import torch

    from overtone.finetune.data.batching import MicroBatch, RankBatch
    from overtone.finetune.training import setup
    from overtone.finetune.training.step import train_step
    from tests.causal_lm.recipe import RECIPE as OF_BYTES

    torch.set_num_threads(1)
    training, _ = setup.build(config_of(folder, "lengths"), OF_BYTES, joined)
    samples = {length: OF_BYTES.read({"text": "a" * length}, None, folder) for length in lengths}
    batch = {length: OF_BYTES.collate([samples[length]] * (POSITIONS // length)) for length in lengths}
    turns = {length: [RankBatch(MicroBatch((0,), POSITIONS, key=0), batch[length], counts=True)] for length in lengths}
    return {str(length): partial(train_step, training, turns[length], 0) for length in lengths}


def measure_rows(folder: Path, sizes: list[int]) -> Iterator[list[object]]:
    """Indexing a file, and opening it again."""
    first: dict[str, float] = {}
    for size in sizes:
        path = folder / f"{size}.jsonl"
        files.write_jsonl(path, ({"text": "x" * (20 + row * 37 % 200)} for row in range(size)))
        indexing, reopening = open_in_new_process(path), open_in_new_process(path)
        figures = {
            "indexing, µs a row": 1e6 * indexing["seconds"] / size,
            "indexing, resident MiB": indexing["mib"],
            "reopening, ms": 1e3 * reopening["seconds"],
            "reopening, resident MiB": reopening["mib"],
        }
        first = first or figures
        for name, figure in figures.items():
            yield ["rows", f"{size:,}", name, f"{figure:.1f}", f"{figure / first[name]:.2f}"]
        files.discard(path)


def open_in_new_process(path: Path) -> dict[str, float]:
    """In a process of its own."""
    command = [sys.executable, str(ROOT / "workshop" / "benchmarks" / "_opening_rows.py"), str(path)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def measure_ranks(folder: Path, counts: list[int], rounds: int) -> Iterator[list[object]]:
    """The same step on more ranks."""
    first: tuple[float, float] | None = None
    for ranks in counts:
        found = _ranks.launch("_steps_of_ranks.py", ranks, folder, "steps", rounds)
        speed = median(each["tokens"] / each["wall"] for each in found)
        busy = 1e6 * median(each["busy"] / each["tokens"] for each in found)
        first = first or (speed, busy)
        yield ["ranks", ranks, "tokens / s", f"{speed:,.0f}", f"{speed / first[0]:.2f}"]
        yield ["ranks", ranks, "processor time of all ranks, µs a token", f"{busy:.1f}", f"{busy / first[1]:.2f}"]


if __name__ == "__main__":
    main()
