"""How long clients of a speech server wait: a closed loop of 1 to 32 clients, beside the stock qwen_tts package.

A client sends a request, reads its sound to the end, pauses, and sends the next one. Pauses are exponential, so requests arrive at random
times and join a running batch; texts have different lengths. The stock package has no stream and no batch that requests join: its first
sound is its last, and clients wait for each other.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from overtone.recipes.qwen3_tts.inference import stock_qwen_tts
from overtone.recipes.qwen3_tts.inference.synthesizer import open_synthesizer
from overtone.recipes.qwen3_tts.model.config_factory import FRAME_RATE, SMALL
from overtone.recipes.serving.continuous_batch_scheduler import CutOffError
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling, Voice
from overtone.recipes.speech.serving.request_queue import SpeechQueue
from workshop.benchmarks import _table, _voice
from workshop.benchmarks.generation import add_named_speaker, stock_wave

COLUMNS = (
    *("model and way", "clients", "first sound, s: p50", "first sound, s: p95"),
    *("gap between chunks, s: p50", "gap between chunks, s: p95", "seconds of sound / s"),
)
NOTE = (
    "Random weights, fp32, on a CPU; seconds by a clock, so other work on the machine counts. Each client sends {each} requests of "
    "{frames} frames at random, sampled with the model's settings, with pauses of {pause:g} s on average. First sound: from the request, "
    "with the time in the queue. Seconds of sound of all clients together. nano is the checkpoint of the tests, with a codec that is small "
    "too."
)
TEXTS = (
    "Hi.",
    "It is never late!",
    "She counted the boats in the harbour and wrote the number down.",
    "Please close the window, because the rain comes in over the books that lie there.",
)
PATIENCE = 86_400.0
"""Deadline of a request, in seconds."""
NOTHING = "–"
Speak = Callable[[str, int, int], AsyncIterator[float]]
"""(text, seed, frames) → duration of each chunk in seconds, as it arrives."""


@dataclass(frozen=True)
class Pattern:
    """Requests of each client."""

    each: int
    frames: tuple[int, ...]
    """Lengths of speech, one of which is drawn for each request: random weights do not end their speech."""
    pause: float
    """Mean seconds between an answer and the next request."""


FULL, QUICK = Pattern(3, (6, 12, 25), 0.2), Pattern(1, (3, 6), 0.0)


@dataclass
class Waits:
    """Result of one closed loop."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    sound: float = 0.0
    seconds: float = 0.0

    def cells(self) -> list[str]:
        """As cells of the table."""
        return [*_percentiles(self.first), *_percentiles(self.gaps), f"{self.sound / self.seconds:.2f}"]


def main() -> None:
    flags = _table.read_flags(__doc__)
    pattern, counts = (QUICK, (1, 2)) if flags.quick else (FULL, (1, 2, 4, 8, 16, 32))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "nano"
        _voice.build(folder, SMALL["nano"])
        rows = measure("nano", add_named_speaker(folder), counts, pattern)
    _table.publish("serving_latency", flags, COLUMNS, rows, NOTE.format(each=pattern.each, pause=pattern.pause, frames=pattern.frames))


def measure(label: str, folder: Path, counts: Sequence[int], pattern: Pattern) -> list[list[str]]:
    """Rows of the table: the server with so many clients, then the stock package with the fewest and the most of up to eight."""
    rows = []
    with open_synthesizer(folder) as voice:
        for clients in counts:
            with open_server(voice, clients, pattern) as speak:
                rows.append([f"{label}, here", str(clients), *run_clients(speak, clients, pattern).cells()])
    speak = open_stock(folder)
    for clients in sorted({counts[0], max(count for count in counts if count <= 8)}):
        rows.append([f"{label}, stock", str(clients), *run_clients(speak, clients, pattern).cells()])
    return rows


def run_clients(speak: Speak, clients: int, pattern: Pattern) -> Waits:
    """Run the closed loop, after one request that warms up."""
    waits = Waits()

    async def client(number: int) -> None:
        chance = random.Random(number)
        for turn in range(pattern.each):
            await asyncio.sleep(chance.expovariate(1 / pattern.pause) if pattern.pause else 0)
            await send(chance, number * pattern.each + turn, waits)

    async def send(chance: random.Random, seed: int, to: Waits) -> None:
        since, is_first = time.monotonic(), True
        async for duration in speak(chance.choice(TEXTS), seed, chance.choice(pattern.frames)):
            now = time.monotonic()
            (to.first if is_first else to.gaps).append(now - since)
            since, is_first = now, False
            to.sound += duration

    async def run() -> None:
        await send(random.Random(0), 0, Waits())
        began = time.monotonic()
        await asyncio.gather(*(client(number) for number in range(clients)))
        waits.seconds = time.monotonic() - began

    asyncio.run(run())
    return waits


@contextmanager
def open_server(voice: Voice, slots: int, pattern: Pattern) -> Iterator[Speak]:
    """The server's own queue with a running batch. The voice stays open."""
    queue = SpeechQueue({"voice": voice}, slots, slots, PATIENCE, longest_seconds=max(pattern.frames) / FRAME_RATE)

    async def speak(text: str, seed: int, frames: int) -> AsyncIterator[float]:
        sampling = SpeechSampling(seed=seed, max_seconds=frames / FRAME_RATE)
        with suppress(CutOffError):
            async for wave in queue.speak("voice", SpeechRequest(text, "ann"), sampling, str(seed)):
                yield len(wave) / voice.rate

    try:
        yield speak
    finally:
        queue.fail_waiting()


def open_stock(folder: Path) -> Speak:
    """The stock package, which takes one request at a time."""
    tts: Any = stock_qwen_tts.load(folder)
    turn = threading.Lock()

    def generate(frames: int) -> None:
        with turn:
            stock_wave(tts, 1, frames)

    async def speak(_text: str, _seed: int, frames: int) -> AsyncIterator[float]:
        await asyncio.to_thread(generate, frames)
        yield frames / FRAME_RATE

    return speak


def _percentiles(found: Sequence[float]) -> list[str]:
    """The median and the 95th percentile, as cells."""
    if len(found) < 2:
        return [f"{found[0]:.3f}", NOTHING] if found else [NOTHING, NOTHING]
    cuts = quantiles(found, n=20, method="inclusive")
    return [f"{cuts[9]:.3f}", f"{cuts[18]:.3f}"]


if __name__ == "__main__":
    main()
