"""Training steps on a GPU, of a 1.7B chat model and a 0.6B voice in shape: model FLOP utilisation with each lever in turn, and memory.

Without a CUDA GPU it says so and leaves the table as it is; with --quick it runs through all of it at the smallest sizes, on a CPU too.

    model FLOPs of a token = 6·N + 12·L·H·Q·T

N: parameters that are multiplied with (an embedding that is only looked up is none; a tied one is the head); L layers of H heads of Q
channels; T: positions of the token's own sample, as if attention were not causal (Chowdhery et al. 2022, PaLM, arXiv:2204.02311, appendix
B). What recomputation does besides does not count, nor padding. In Qwen3-TTS each frame is also 16 positions of the code predictor, with
the heads of 15. MFU is that over the data sheet's dense bf16; the ceiling is what one matrix product reaches in the same run.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._gpu import Part, Report, measure

COLUMNS = (
    "model", "version", "tokens / s", "TFLOP / s", "MFU", "of the ceiling", "peak, GiB", "plan, GiB", "peak / plan", "lasting / 16Ψ"
)  # fmt: skip
REPORT = Report(
    name="gpu",
    parts=(
        Part("_gpu_steps.py", "bases", 3, needed=True),
        Part("_gpu_steps.py", "ceiling", 1, needed=True),
        Part("_gpu_steps.py", "chat", 8),
        Part("_gpu_steps.py", "voice", 4),
    ),
    minutes=14,  # gpu_beside.py has the rest of 25
    columns=COLUMNS,
    note=(
        "Chats: one optimizer step on {chats} chats of log-normal length up to {sequence} positions (`packed` and `padded`), or each of "
        "exactly {sequence} (`even`); micro-batches of up to {micro} positions; a version is the one before it with one thing changed. "
        "Voice: {clips} clips of spoken sentences. bf16 with fp32 masters, full fine-tuning, AdamW; median of {rounds} steps after two. "
        "Peak: torch.cuda.max_memory_allocated beside what `finetune plan` says; lasting: what is allocated between two steps, over 16 "
        "bytes a parameter."
    ),
)

if __name__ == "__main__":
    measure(REPORT, __doc__)
