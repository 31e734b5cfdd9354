"""Estimate: how many times faster than real time one GPU transcribes with Whisper large-v3, beside the goal of 92.

Nothing here ran on a GPU. One process does everything in turn, as data_prep does: it detects speech and computes spectrograms on the CPU
(measured here), and encodes, decodes and aligns words on the GPU. A GPU operation takes the longest of computing, reading its weights and
keys, and starting its kernels. Kernels are counted: each operation of torch that is no view, in models of the same code with few blocks.
`gpu.py --part speech` measures the same on a GPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

os.environ["NUMBA_NUM_THREADS"] = "1"  # as in transcribe_speed

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from whisper import timing
from whisper.model import ModelDimensions, Whisper

from overtone.data_prep.segmentation import vad
from overtone.data_prep.transcription import packed_transcription, whisper_engine
from overtone.data_prep.transcription.packed_transcription import BATCH, Pack
from overtone.finetune.hardware.gpu_specs import EFFICIENCY, GPUS
from workshop.benchmarks import _table, scaling_data, transcribe_speed
from workshop.benchmarks._gpu_speech import GOAL
from workshop.benchmarks.scaling_data import BANDWIDTH, FRAMES, SIZES, START, STREAM, VOCABULARY

LARGE = SIZES["large-v3"]
FEW, MORE = 1, 2
"""Blocks of the models in which kernels are counted; each further block has as many."""
WIDTH, HEADS = 64, 2
PHASES = ("encoding", "a step", "language", "word times")
CONVERTED = 4
"""Times that the bytes of an fp16 weight pass through memory if each call converts an fp32 weight: read as 4, written and read as 2."""
OTHER = 37.0
"""Processor seconds for an hour of recording besides the text: decoding 11; measuring, cutting and writing clips 26 (preparation_speed)."""
WORKERS = 3
COLUMNS = (
    "GPU",
    "CPU, ms",
    "encoder, ms",
    "decoder, ms",
    "word times, ms",
    "a step waits for",
    "times real time",
    "goal",
    "goal is met up to, µs a kernel",
    "with fp32 weights",
    "recordings to clips, one worker",
    f"{WORKERS} workers a GPU",
)
NOTE = (
    "Milliseconds of one process for one pack of speech. CPU: speech detection, spectrogram and time warping, in processor time of one "
    "thread here. Decoder: {tokens:.0f} tokens a pack of {seconds:.1f} s, in batches of {batch}. A step "
    "starts {step} kernels, a pack's word times {align}, at {start:.0f} µs each. Assumed: {speed:.0%} of the dense bf16 speed and "
    "{stream:.0%} of the memory bandwidth of NVIDIA's data sheets. With fp32 weights: they would be converted to fp16 in each call, as "
    "openai-whisper does, which starts {before} kernels in a step and moves four times the bytes. The goal is what insanely-fast-whisper "
    "states for large-v3 on an A100 of 80 GB: 150 minutes in 98 s. Recordings to clips: with {other:g} s of a core for an hour of "
    "recording to decode, measure and cut. Several "
    "workers share the GPU with `--workers`; then each has a core, and the GPU is busy for what it computes and reads."
)


class Kernels(TorchDispatchMode):
    """Counts the operations that start a kernel: all but views and the allocation of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and not func.name().startswith(("aten::empty", "aten::_unsafe_view", "aten::detach", "aten::lift"))
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Measured:
    """Measures of the sample's speech."""

    tokens: float
    """Tokens of a pack."""
    seconds: float
    """Seconds of the recording, for each pack."""
    host: float
    """Processor seconds for each pack."""


def main() -> None:
    flags = _table.read_flags(__doc__)
    torch.set_num_threads(1)
    kernels, before = count_kernels(halved=True), count_kernels(halved=False)
    of = measure(0.6 if flags.quick else 10.0)
    rows = [row(gpu, of, kernels, before) for gpu in BANDWIDTH]
    note = NOTE.format(
        tokens=of.tokens, seconds=of.seconds, batch=BATCH, step=round(kernels["a step"]), align=round(kernels["word times"]),
        start=1e6 * START, speed=EFFICIENCY, stream=STREAM, before=round(before["a step"]), other=OTHER,
    )  # fmt: skip
    _table.publish("transcribe_estimate", flags, COLUMNS, rows, note)


def row(gpu: str, of: Measured, kernels: dict[str, float], before: dict[str, float]) -> list[str]:
    parts, bound = estimate(gpu, of, kernels, 1)
    times = [f"{1000 * part:.0f}" for part in (of.host, *parts)]
    speed, slower = times_real_time(gpu, of, kernels, 1), times_real_time(gpu, of, before, CONVERTED)
    clips = [f"{clips_times_real_time(gpu, of, kernels, workers):.0f}" for workers in (1, WORKERS)]
    return [gpu, *times, bound, f"{speed:.0f}", str(GOAL), find_slowest_start(gpu, of, kernels), f"{slower:.0f}", *clips]


def times_real_time(gpu: str, of: Measured, kernels: dict[str, float], moved: int, start: float = START) -> float:
    return of.seconds / (of.host + sum(estimate(gpu, of, kernels, moved, start)[0]))


def clips_times_real_time(gpu: str, of: Measured, kernels: dict[str, float], workers: int) -> float:
    """From recordings to clips, by workers that share a GPU."""
    alone = of.host + OTHER / 3600 * of.seconds + sum(estimate(gpu, of, kernels, 1)[0])
    busy = sum(estimate(gpu, of, kernels, 1, start=0.0)[0])
    return of.seconds / max(alone / workers, busy)


def find_slowest_start(gpu: str, of: Measured, kernels: dict[str, float]) -> str:
    """The whole microseconds to start a kernel with which the goal is still met."""
    met = [micro for micro in range(1, 100) if times_real_time(gpu, of, kernels, 1, 1e-6 * micro) >= GOAL]
    return str(max(met)) if met else "–"


def estimate(gpu: str, of: Measured, kernels: dict[str, float], moved: int, start: float = START) -> tuple[tuple[float, float, float], str]:
    """Seconds of (encoder, decoder, word times) for one pack, and what a step of the decoder waits for.

    `moved`: how often the bytes of a weight in fp16 pass through memory for one product; `start`: seconds to start a kernel.
    """
    speed, memory = GPUS[gpu].speed * 1e12 * EFFICIENCY, BANDWIDTH[gpu] * 1e9 * STREAM
    encoded = whisper_engine.ENCODED_AT_ONCE
    encoder = max(scaling_data.encoder_flops(LARGE) / speed, kernels["encoding"] * start / encoded)
    weights, keys = 2 * moved * (14 * LARGE.decoder * LARGE.width**2 + LARGE.width * VOCABULARY), 4 * LARGE.decoder * FRAMES * LARGE.width
    step = {
        "computing": BATCH * scaling_data.step_flops(LARGE) / speed,
        "memory": (weights + BATCH * keys) / memory,
        "starting kernels": kernels["a step"] * start,
    }
    cross = scaling_data.cross_flops(LARGE) / speed
    decoder = (of.tokens * max(step.values()) + kernels["language"] * start) / BATCH + 2 * cross  # the language is read from the packs too
    word_times = max(of.tokens * scaling_data.step_flops(LARGE) / speed + cross, weights / memory, kernels["word times"] * start)
    return (encoder, decoder, word_times), max(step, key=lambda name: step[name])


def count_kernels(*, halved: bool) -> dict[str, float]:
    """Kernels of each phase in large-v3. `halved`: whether its weights are in fp16."""
    few, more = (count_in_blocks(blocks, halved) for blocks in (FEW, MORE))
    return {name: few[name] + (LARGE.decoder - FEW) * (more[name] - few[name]) / (MORE - FEW) for name in PHASES}


def count_in_blocks(blocks: int, halved: bool) -> dict[str, int]:
    """The kernels of a model with few and narrow blocks: encoding a group of packs, decoding a token of a batch, and so on."""
    model = make_model(blocks)
    batch: list[Pack] = [(vad.Region(0, 24000 * 26),)] * BATCH
    mels = [torch.randn(128, 3000)] * BATCH
    with (
        mock.patch.object(whisper_engine, "_uses_fp16", lambda _model: True),
        mock.patch.object(whisper_engine, "FALLBACK_TEMPERATURES", ()),
    ):
        if halved:
            whisper_engine.halve_products(model)
        group = whisper_engine.ENCODED_AT_ONCE
        encoding, features = counted(lambda: whisper_engine._encode_mels(model, mels[:group]))
        features = features[:1].repeat(BATCH, 1, 1)
        steps = []
        for limit in (4, 8):
            with mock.patch.object(whisper_engine, "compute_token_limit", lambda *_, limit=limit: limit):
                found, results = counted(lambda: whisper_engine._decode_packs(model, features, batch, "en", 1, False))
                steps.append(found)
        language, _ = counted(lambda: whisper_engine._read_language_probs(model, features, results))
        align, _ = counted(lambda: whisper_engine._make_units(model, features[0], batch[0], results[0], 1.0, True))
    return {"encoding": encoding, "a step": (steps[1] - steps[0]) // 4, "language": language, "word times": align}


def make_model(blocks: int) -> Whisper:
    """Like large-v3, but with few and narrow blocks, and random weights."""
    torch.manual_seed(0)
    return Whisper(ModelDimensions(128, FRAMES, WIDTH, HEADS, blocks, VOCABULARY, 448, WIDTH, HEADS, blocks)).eval()


def counted(act: Callable[[], Any]) -> tuple[int, Any]:
    with Kernels() as kernels:
        found = act()
    return kernels.count, found


def measure(minutes: float) -> Measured:
    """Return what one process does on the CPU with the sample's speech, with 128 bands and a model whose matrices are small."""
    detector = vad.load_vad()
    master = transcribe_speed.recording(minutes, transcribe_speed.PAUSES["0.2 to 0.4 s"])
    sound = transcribe_speed.make_whisper(master)
    regions = vad.find_speech(detector, sound, len(master.samples))
    packed = packed_transcription.pack_windows(vad.make_windows(regions, master))
    tokens = transcribe_speed.count_tokens(regions)
    host = transcribe_speed.processor_seconds(lambda: vad.find_speech(detector, sound, len(master.samples)))
    wide = make_model(1)
    host += transcribe_speed.processor_seconds(lambda: [whisper_engine._compute_mel(wide, sound, pack) for pack in packed])
    host += len(packed) * time_warping(round(tokens / len(packed)))
    return Measured(tokens / len(packed), sound.seconds / len(packed), host / len(packed))


def time_warping(tokens: int) -> float:
    """Processor seconds that dynamic time warping of a pack takes on a CPU; a GPU has a kernel for most of it."""
    costs = np.random.default_rng(0).standard_normal((tokens, FRAMES))
    timing.dtw_cpu(costs)  # the first call compiles it
    return transcribe_speed.processor_seconds(lambda: timing.dtw_cpu(costs))


if __name__ == "__main__":
    main()
