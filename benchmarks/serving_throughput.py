"""Speech for several clients at once: one request at a time, and in a running batch that requests join and leave.

Both ways serve the same requests through the server's own queue, and must give the same samples: the codes are compared first.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks import _table, _voice
from benchmarks.generation import add_named_speaker
from recipes.speech.interface import SpeechRequest, SpeechSampling
from recipes.speech.serving.request_queue import SpeechQueue
from recipes.voice_clone.inference.synthesizer import Synthesizer, open_synthesizer
from recipes.voice_clone.model.config_factory import FRAME_RATE, SMALL, ModelSize

COLUMNS = (
    *("model", "clients", "requests / s, one at a time", "requests / s, batched", "batched / one at a time"),
    *("p95 first sound, s, one at a time", "p95 first sound, s, batched", "first sound: one at a time / batched"),
)
NOTE = (
    "Random weights, fp32, sampled with the model's settings; processor seconds of one process on one thread of a CPU, medians of {rounds} "
    "runs in turns. Each client sends {each} requests of {frames} frames ({seconds:g} s of sound), the next as soon as it has the whole "
    "answer. First sound: from the request to its first samples, with the time in the queue. nano is the checkpoint of the tests; quarter "
    "has a talker of 8 layers and a predictor of 3, each 256 wide, with the released codebooks. Their codec is small too. It decodes each "
    "request's sound by itself, also in a batch."
)
TEXT = "She counted the boats in the harbour and wrote the number down."
PATIENCE = 86_400.0
"""Deadline of a request in seconds of the clock, which also run while other programs have the processor."""
QUARTER = ModelSize("quarter", 2048, 256, 256, 768, 8, 256, 768, 3, 4, 2, 64, 64, 16, 2048, spread=0.05)


@dataclass
class Load:
    """One run of all clients."""

    requests: int
    seconds: float = 0.0
    first_sound: list[float] = field(default_factory=list)

    @property
    def p95(self) -> float:
        """Seconds."""
        return quantiles(self.first_sound, n=20, method="inclusive")[-1]


def main() -> None:
    flags = _table.read_flags(__doc__)
    torch.set_num_threads(1)
    each, frames, rounds = (1, 4, 1) if flags.quick else (2, 25, 3)
    sizes = [("nano", SMALL["nano"], 8)] if flags.quick else [(name, size, clients) for name, size, clients in PLAN]
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(Path(folder), name, size, clients, each, frames, rounds) for name, size, clients in sizes]
    note = NOTE.format(rounds=rounds, each=each, frames=frames, seconds=frames / FRAME_RATE)
    _table.publish("serving_throughput", flags, COLUMNS, rows, note)


PLAN = (("nano", SMALL["nano"], 8), ("quarter", QUARTER, 8))


def measure(folder: Path, name: str, size: ModelSize, clients: int, each: int, frames: int, rounds: int) -> list[object]:
    """One line of the table."""
    if not (folder / name).exists():
        _voice.build(folder / name, size)
        add_named_speaker(folder / name)
    voice, sampling = open_synthesizer(folder / name), SpeechSampling(max_seconds=frames / FRAME_RATE)
    require_same_sound(voice, sampling)
    found: dict[int, list[Load]] = {1: [], 8: []}
    for turn in range(rounds):
        for slots in (1, 8) if turn % 2 == 0 else (8, 1):
            found[slots].append(serve(voice, slots, clients, each, sampling))
    one, batched = found[1], found[8]
    speeds = [median(load.requests / load.seconds for load in loads) for loads in (one, batched)]
    sounds = [median(load.p95 for load in loads) for loads in (one, batched)]
    return [
        *(name, clients, *(f"{speed:.2f}" for speed in speeds), f"{speeds[1] / speeds[0]:.1f}"),
        *(*(f"{sound:.3f}" for sound in sounds), f"{sounds[0] / sounds[1]:.1f}"),
    ]


def serve(voice: Synthesizer, slots: int, clients: int, each: int, sampling: SpeechSampling) -> Load:
    """Serve all clients until each has its answers."""
    load = Load(clients * each)

    async def run() -> None:
        queue = SpeechQueue({"voice": voice}, clients, slots, deadline_seconds=PATIENCE)
        began = time.process_time()
        await asyncio.gather(*(send(queue, str(client)) for client in range(clients)))
        load.seconds = time.process_time() - began
        queue._scheduler.close()  # the voice stays open for the next run

    async def send(queue: SpeechQueue, client: str) -> None:
        for number in range(each):
            began, heard = time.process_time(), False
            settings = SpeechSampling(seed=number, max_seconds=sampling.max_seconds)
            async for _ in queue.speak("voice", SpeechRequest(TEXT, "ann"), settings, client):
                if not heard:
                    load.first_sound.append(time.process_time() - began)
                heard = True

    asyncio.run(run())
    return load


def require_same_sound(voice: Synthesizer, sampling: SpeechSampling) -> None:
    """Stop if the two ways do not give the same samples: their times would then say nothing."""

    async def speak(slots: int) -> list[np.ndarray]:
        queue = SpeechQueue({"voice": voice}, 8, slots, deadline_seconds=PATIENCE)

        async def collect(seed: int) -> np.ndarray:
            settings = SpeechSampling(seed=seed, max_seconds=sampling.max_seconds)
            return np.concatenate([wave async for wave in queue.speak("voice", SpeechRequest(TEXT, "ann"), settings)])

        waves = await asyncio.gather(*(collect(seed) for seed in range(3)))
        queue._scheduler.close()
        return waves

    alone, batched = asyncio.run(speak(1)), asyncio.run(speak(8))
    if not all(np.array_equal(one, other) for one, other in zip(alone, batched, strict=True)):
        raise SystemExit("the two ways give different samples, so their times say nothing")


if __name__ == "__main__":
    main()
