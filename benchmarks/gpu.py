"""Training steps on a GPU, of 1.7B-shaped models with random weights: model FLOP utilisation with each lever in turn, and memory.

Without a CUDA GPU it says so and leaves the table as it is; with --quick it runs through all of it at the smallest sizes, on a CPU too.

    model FLOPs of a token = 6·N + 12·L·H·Q·T

N: parameters that are multiplied with (an embedding that is only looked up is none; a tied one is the head); L layers of H heads of Q
channels; T: positions of the token's own sample, as if attention were not causal (Chowdhery et al. 2022, PaLM, arXiv:2204.02311, appendix
B). What recomputation does besides does not count, nor padding. In Qwen3-TTS each frame is also 16 positions of the code predictor, with
the heads of 15. MFU is that over the data sheet's dense bf16; the ceiling is what one matrix product reaches in the same run.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _gpu, _table
from benchmarks._gpu import Part

PARTS = (
    Part("_gpu_steps.py", "bases", 3),
    Part("_gpu_steps.py", "ceiling", 1),
    Part("_gpu_steps.py", "chat", 8),
    Part("_gpu_steps.py", "voice", 4),
)
MINUTES = 14
"""In all; gpu_beside.py has the rest of 25."""
COLUMNS = (
    "model", "version", "tokens / s", "TFLOP / s", "MFU", "of the ceiling", "peak, GiB", "plan, GiB", "peak / plan", "lasting / 16Ψ"
)  # fmt: skip
NOTE = (
    "Chats: one optimizer step on {chats} chats of log-normal length up to {sequence} positions (`packed` and `padded`), or each of "
    "exactly {sequence} (`even`); micro-batches of up to {micro} positions; a version is the one before it with one thing changed. Voice: "
    "{clips} clips of spoken sentences. bf16 with fp32 masters, full fine-tuning, AdamW; median of {rounds} steps after two. Peak: "
    "torch.cuda.max_memory_allocated beside what `finetune plan` says; lasting: what is allocated between two steps, over 16 bytes a "
    "parameter."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    if not flags.quick and not _gpu.has_gpu():
        print(f"no CUDA GPU here: {flags.to / 'gpu.md'} stays as it is (--quick runs through the benchmark on a CPU)")
        return
    scale = _gpu.SMALLEST if flags.quick else _gpu.FULL
    with tempfile.TemporaryDirectory() as folder:
        rows, remarks = _gpu.run_parts(PARTS, Path(folder), flags.quick, MINUTES)
    said = NOTE.format(**{name: getattr(scale, name) for name in ("chats", "sequence", "micro", "clips", "rounds")})
    _table.publish("gpu", flags, COLUMNS, rows, " ".join([said, about_machine(), *(f"Not measured: {each}." for each in remarks)]))


def about_machine() -> str:
    """What it ran on, and when."""
    import torch
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    return f"On {device}, {date.today().isoformat()}, torch {torch.__version__}, transformers {transformers.__version__}."


if __name__ == "__main__":
    main()
