"""Part `chat`: steps of a 1.7B chat model in shape, from a plain loop to all levers."""

from __future__ import annotations

from functools import partial

from workshop.benchmarks import _gpu
from workshop.benchmarks._gpu import FULL, Bench
from workshop.benchmarks._gpu_figures import Cells, Figure, Part, Table
from workshop.benchmarks._gpu_steps import SPEED, Version, ceiling_row, chat_versions, measure

STEP, COMPILING = 24.0, 50.0
"""Seconds: start of a run and seven steps, of which a slow version's take two each; what compiling takes besides."""


def row(version: Version, bench: Bench) -> list[Cells]:
    return [[version.name, *measure(bench, "chat", version).cells]]


def figure(version: Version) -> Figure:
    compiled = "train.compile" in version.keys
    dry = not compiled and "liger" not in version.keys.values()  # a CPU compiles for minutes, and Liger needs a GPU
    return Figure(version.name, STEP + COMPILING * compiled, partial(row, version), dry)


NOTE = (
    f"One optimizer step on {FULL.chats} chats of log-normal length up to {FULL.sequence} positions, or on chats of exactly so many "
    f"(`even`); micro-batches of up to {FULL.micro} positions; a version is one before it with one thing changed. Random weights in the "
    f"shape of Qwen3-1.7B. bf16 with fp32 masters, full fine-tuning, fused AdamW; median of {FULL.rounds} steps after two. MFU: "
    "(6·N + 12·L·H·Q·T) FLOPs a token (Chowdhery et al. 2022, arXiv:2204.02311, appendix B) over the data sheet's dense bf16; the ceiling "
    "is the product of the first row. Peak: torch.cuda.max_memory_allocated beside what `overtone plan` says; lasting: what is allocated "
    "between two steps: master weights, AdamW's moments and the sums of gradients in fp32, and bf16 copies are 18 bytes a parameter."
)
CEILING = Figure("ceiling", 5.0, lambda bench: [ceiling_row(bench)])
PART = Part(
    tables=(Table(("version", *SPEED), (CEILING, *map(figure, chat_versions())), NOTE),),
    prepare=_gpu.chat_base,
    preparing=75.0,
)
