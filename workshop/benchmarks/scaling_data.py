"""Estimate: hours of recordings that one GPU prepares per hour with each size of Whisper, and the CPU cores that keep it busy.

Nothing here ran on a GPU. A window of 30 s goes through the encoder once and the decoder word by word; each step takes the longest of
computing, of reading weights and keys from memory, and of starting its kernels, which is how this package decodes (eager torch,
batches of 16 windows). workshop/lab_book/scaling.md states every assumption.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.hardware.gpu_specs import EFFICIENCY, GPUS
from workshop.benchmarks import _table

BANDWIDTH = {"h100-80gb": 3350, "a100-80gb": 2039, "l40s": 864, "l4": 300, "rtx-4090": 1008}
"""GB a second of a GPU's own memory, from NVIDIA's data sheets (H100 SXM5, A100 SXM4)."""
STREAM = 0.6
"""Share of that bandwidth which reading large matrices reaches."""
FRAMES, VOCABULARY = 1500, 51866
SPEECH, TOKENS = 26.0, 3.5
"""Seconds of speech in a packed window of at most 28, and tokens in a second of it: about what English has."""
BATCH = 16
KERNELS, START = 25, 6e-6
"""Kernels of a decoder block in eager torch, and seconds to start one from Python: 5 to 10 µs."""
HOST = 41.0
"""CPU seconds for an hour of recording, on one core: reading it and resampling twice 11, speech detection 4, measures and clips 26
(preparation_speed)."""
PUBLISHED = {"large-v3": "70 (WhisperX, large-v2)", "turbo": "393 (TensorRT-LLM, distil-large-v2)"}
"""Times real time on one GPU: WhisperX's README, and the Open ASR Leaderboard of January 2025; their decoders are of about that size."""
COLUMNS = (
    "Whisper", "GPU", "encoder, ms a window", "decoder, ms a window", "bound by", "hours of speech a GPU-hour", "published, any GPU",
    "CPU cores a GPU", "GPU-hours for 1,000 h", "GPUs until 1 GB/s is read",
)  # fmt: skip
RECORDING = 635e6
"""Bytes of an hour of recording: 44.1 kHz, 16 bits, stereo."""
NOTE = (
    "A ceiling, not a forecast: nothing but Whisper is on the GPU, and it never waits. Hours of speech: of what is left without silence. "
    "Decoder: with the second pass that gives word times. Bound by: what a step of the decoder waits for. CPU cores: what reading, "
    f"resampling, speech detection and measures need at that speed, {HOST:g} s of one core for an hour. The last column: storage that "
    "gives 1 GB a second feeds so many."
)


@dataclass(frozen=True)
class Whisper:
    """Sizes that openai-whisper has."""

    width: int
    encoder: int
    """Blocks."""
    decoder: int


SIZES = {
    "small": Whisper(768, 12, 12),
    "medium": Whisper(1024, 24, 24),
    "large-v3": Whisper(1280, 32, 32),
    "turbo": Whisper(1280, 32, 4),
}


def encoder_flops(of: Whisper) -> float:
    """Return the operations of a window: 12 d² weights a block and position, attention over all positions."""
    return of.encoder * FRAMES * (24 * of.width**2 + 4 * FRAMES * of.width)


def cross_flops(of: Whisper) -> float:
    """Return the operations of a window: keys and values of the audio, once for each decoder block."""
    return of.decoder * FRAMES * 4 * of.width**2


def step_flops(of: Whisper) -> float:
    """Return the operations of a token: 14 d² weights a block (8 of the MLP, 4 of self-attention, 2 of cross-attention), attention to the
    audio, logits."""
    return of.decoder * (28 * of.width**2 + 4 * FRAMES * of.width) + 2 * of.width * VOCABULARY


def step_bytes(of: Whisper, windows: int) -> float:
    """Read in a step, in fp16: all weights once, and each window's keys and values of the audio."""
    weights = 14 * of.decoder * of.width**2 + of.width * VOCABULARY
    return 2 * (weights + windows * of.decoder * 2 * FRAMES * of.width)


def seconds(of: Whisper, gpu: str) -> tuple[float, float, str]:
    """(encoder, decoder) of a window, and what bounds a step of the decoder."""
    speed, tokens = GPUS[gpu].speed * 1e12 * EFFICIENCY, SPEECH * TOKENS
    step = {
        "computing": BATCH * step_flops(of) / speed,
        "memory": step_bytes(of, BATCH) / (BANDWIDTH[gpu] * 1e9 * STREAM),
        "starting kernels": of.decoder * KERNELS * START,
    }
    word_times = tokens * step_flops(of) / speed
    decoder = tokens * max(step.values()) / BATCH + cross_flops(of) / speed + word_times
    return encoder_flops(of) / speed, decoder, max(step, key=lambda name: step[name])


def row(name: str, gpu: str) -> list[str]:
    encoder, decoder, bound = seconds(SIZES[name], gpu)
    hours = SPEECH / (encoder + decoder)
    cores, readers = hours * HOST / 3600, 1e9 / (RECORDING * hours / 3600)
    times = [f"{1000 * encoder:.1f}", f"{1000 * decoder:.1f}", bound, f"{hours:,.0f}"]
    return [name, gpu, *times, PUBLISHED.get(name, ""), f"{cores:.0f}", f"{1000 / hours:.1f}", f"{readers:.0f}"]


def main() -> None:
    flags = _table.read_flags(__doc__)
    _table.publish("scaling_data", flags, COLUMNS, [row(name, gpu) for name in SIZES for gpu in BANDWIDTH], NOTE)


if __name__ == "__main__":
    main()
