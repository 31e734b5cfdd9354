"""Estimate: at which length one sequence no longer fits a GPU's share, and from which length context parallelism would hide what it sends.

A micro-batch has at least one sequence. With full activation checkpointing a GPU keeps the input of every block for all its positions;
`fsdp` does not divide that, and tensor parallelism divides only what is inside of a block. Context parallelism divides the positions: the
GPUs of a group pass keys and values around a ring (Liu et al. 2023, Ring Attention, arXiv:2310.01889). Overtone does not have it.
workshop/lab_book/scaling.md states every assumption.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.hardware.gpu_specs import EFFICIENCY, GPUS
from overtone.finetune.planning.memory import Arrangement
from overtone.finetune.planning.parallelism_planner import Work, estimate_layout
from overtone.recipes.qwen3_tts.model.config_factory import make_released_config
from workshop.benchmarks import _table
from workshop.benchmarks.scaling import GPU, LLAMA_8B, MACHINE, Model, cluster_of, work_of
from workshop.benchmarks.scaling_pipeline import SHAPES

TRACED = tuple(2**power for power in range(11, 19))
"""Lengths of the traced sequences, in positions."""
COUNTS = (8, 64, 512)
RING = 8
"""GPUs that share a sequence."""
MODELS = (
    Model("Qwen3-TTS-1.7B", "voice_clone", make_released_config("1.7B"), 8192, 2**19, "full"),
    *(Model(name, "llm_sft", shape, 8192, 2**22, "full") for name, shape in SHAPES.items()),
)
COLUMNS = (
    "model", "GPUs", "longest sequence, fsdp", "fsdp × tp 8", f"fsdp, {RING} GPUs a sequence", "GPUs in use, fsdp", "fsdp × tp 8",
    "ring hides in a machine from", "between machines from",
)  # fmt: skip
NOTE = (
    f"Positions of the longest sequence that fits into an H100 with full activation checkpointing, rounded down to {1024:,}; “–”: none. "
    f"With {RING} GPUs a sequence: {RING} times that of fsdp, as each GPU then has an eighth of the positions. GPUs in use: of a step of "
    "4,194,304 positions (524,288 for the voice model), which is 32 (4) sequences of 131,072, one for each data-parallel group, whether or "
    "not they fit. Hides: positions of a GPU from which attending to a block of the ring takes longer than receiving the next one."
)


@cache
def work_at(model: Model, positions: int) -> Work:
    """Counted and traced, for a micro-batch of one sequence of so many positions."""
    shape = model.shape | ({"max_position_embeddings": positions} if "max_position_embeddings" in model.shape else {})
    return work_of(replace(model, shape=shape, micro=positions))


def missing_bytes(model: Model, positions: int, gpus: int, tensor: int) -> float:
    """By how much a sequence does not fit; negative if it does."""
    work = work_at(model, positions)
    layout = estimate_layout(work, cluster_of(gpus, GPUS[GPU].fabric), Arrangement("fsdp", gpus, tensor=tensor), work.recomputing)
    return layout.memory.total - layout.budget


def longest_sequence(model: Model, gpus: int, tensor: int) -> int | None:
    """Positions that fit on so many GPUs under `fsdp`, with `tensor` neighbours each; None if this cannot be arranged, 0 if nothing fits.

    Between two traced lengths, memory is interpolated.
    """
    if tensor > 1 and work_at(model, TRACED[0]).refuses_tensor(tensor) is not None:
        return None
    before, missing = 0, 0.0
    for positions in TRACED:
        last, missing = missing, missing_bytes(model, positions, gpus, tensor)
        if missing > 0:
            return round(before + (positions - before) * last / (last - missing)) // 1024 * 1024 if before else 0
        before = positions
    return TRACED[-1]


def ring_hides_from(shape: dict[str, int], gigabytes: float) -> int:
    """Positions L of a GPU from which one hop of the ring is hidden, at so many GB a second from a GPU to the next.

    A hop sends keys and values of L positions, 2 · L · heads · size elements of 2 bytes. Meanwhile L queries attend to L keys: 4 · L² · H
    operations, of which the causal mask needs half on average.
    """
    size = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    sent = 2 * shape["num_key_value_heads"] * size * 2 / (gigabytes * 1e9)
    computed = 2 * shape["num_attention_heads"] * size / (GPUS[GPU].speed * 1e12 * EFFICIENCY)
    return round(sent / computed)


def used(model: Model, gpus: int, tensor: int, sequence: int = 131072) -> str:
    """Return how many of the GPUs have a sequence in a step."""
    return f"{min(gpus, model.batch // sequence * tensor):,}"


def shape_of(model: Model) -> dict[str, int]:
    inner = model.shape.get("talker_config", model.shape)
    return {key: inner[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim") if key in inner}


def rows(models: Iterable[Model], counts: tuple[int, ...]) -> Iterator[list[str]]:
    link, fabric = GPUS[GPU].link, GPUS[GPU].fabric / MACHINE
    for model in models:
        for gpus in counts:
            plain, shared = longest_sequence(model, gpus, 1), longest_sequence(model, gpus, 8)
            ring = plain * RING if plain and gpus >= RING else None
            lengths = [f"{length:,}" if length else "–" for length in (plain, shared, ring)]
            idle = [used(model, gpus, 1), used(model, gpus, 8) if shared is not None else "–"]
            hidden = [f"{ring_hides_from(shape_of(model), speed):,}" for speed in (link, fabric)]
            yield [model.name, f"{gpus}", *lengths, *idle, *hidden]


def main() -> None:
    flags = _table.read_flags(__doc__)
    chosen = (Model("Llama-3-8B", "llm_sft", LLAMA_8B, 8192, 2**22, "full"),) if flags.quick else MODELS
    _table.publish("scaling_context", flags, COLUMNS, list(rows(chosen, COUNTS[:1] if flags.quick else COUNTS)), NOTE)


if __name__ == "__main__":
    main()
