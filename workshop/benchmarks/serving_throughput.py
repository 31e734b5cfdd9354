"""Speech and chats for several clients at once: one request at a time, and in a running batch that requests join and leave.

Both ways serve the same requests through the server's own queue, and must give the same result: that is compared first.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from overtone.recipes.language.answer_generation import LoadedModel
from overtone.recipes.language.serving.chat_batch import AnswerRequest
from overtone.recipes.language.serving.chat_queue import ChatQueue, ServedModel, find_batching_obstacle, open_lane
from overtone.recipes.language.tokenization.tokenizer import load_tokenizer
from overtone.recipes.llm_sft.model import tiny_checkpoint
from overtone.recipes.qwen3_tts.inference.synthesizer import open_synthesizer
from overtone.recipes.qwen3_tts.model.config_factory import FRAME_RATE, SMALL, ModelSize
from overtone.recipes.serving.continuous_batch_scheduler import CutOffError
from overtone.recipes.speech.decoding.token_sampling import CodeSampler
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.speech.serving.request_queue import SpeechQueue
from workshop.benchmarks import _table, _voice
from workshop.benchmarks.generation import add_named_speaker

COLUMNS = (
    *("model", "clients", "requests / s, one at a time", "requests / s, batched", "batched / one at a time"),
    *("p95 first part, s, one at a time", "p95 first part, s, batched", "first part: one at a time / batched"),
)
NOTE = (
    "Random weights, fp32; processor seconds of one process on one thread of a CPU, medians of {rounds} runs in turns. Each client sends "
    "{each} requests, the next as soon as it has the whole answer. First part: from the request to its first sound or text, with the time "
    "in the queue. Speech: {frames} frames ({seconds:g} s of sound), sampled with the model's settings. nano is the checkpoint of the "
    "tests; quarter has a talker of 8 layers and a predictor of 3, each 256 wide, with the released codebooks. Their codec is small too. "
    "It decodes the new frames of all requests in one pass. Chats: a Qwen3 of 8 layers with the vocabulary of the tests ({words} "
    "tokens), prompts of {prompt} tokens and answers of {answer}, sampled with temperature 1; one at a time is transformers' own "
    "generation."
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
    first_part: list[float] = field(default_factory=list)
    results: dict[int, list[bytes]] = field(default_factory=dict)
    """Seed → parts of the result."""

    @property
    def p95(self) -> float:
        """Seconds."""
        return quantiles(self.first_part, n=20, method="inclusive")[-1]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurement."""

    each: int
    """Requests of each client."""
    rounds: int
    frames: int
    prompt: int
    answer: int
    speech: tuple[tuple[str, ModelSize], ...]
    widths: tuple[int, ...]
    """Widths of the chat models."""


FULL = Sizes(2, 3, 25, 32, 48, (("nano", SMALL["nano"]), ("quarter", QUARTER)), (256, 512))
QUICK = Sizes(1, 1, 4, 5, 6, (("nano", SMALL["nano"]),), (64,))
CLIENTS = 8
Send = Callable[[Load, int], Coroutine[Any, Any, None]]
"""Sends one request and records the time to its first part: (load, seed)."""
OpenServer = Callable[[int], AbstractContextManager[Send]]
"""(requests at once) → a server."""


def main() -> None:
    flags = _table.read_flags(__doc__, ("speech", "chat"))
    torch.set_num_threads(1)
    sizes, rows = QUICK if flags.quick else FULL, []
    with tempfile.TemporaryDirectory() as folder:
        words = load_tokenizer(tiny_checkpoint.build(Path(folder) / "words"), None)
        for name, size in sizes.speech if flags.part != "chat" else ():
            rows.append(measure(f"speech, {name}", open_speech(Path(folder) / name, size, sizes), sizes))
        for width in sizes.widths if flags.part != "speech" else ():
            rows.append(measure(f"chat, {width} wide", open_chats(words, width, sizes), sizes))
    note = NOTE.format(**vars(sizes), seconds=sizes.frames / FRAME_RATE, words=len(words))
    _table.publish("serving_throughput", flags, COLUMNS, rows, note)


def measure(name: str, open_server: OpenServer, sizes: Sizes) -> list[object]:
    """One line of the table."""
    found: dict[int, list[Load]] = {1: [], CLIENTS: []}
    for turn in range(sizes.rounds):
        for slots in (1, CLIENTS) if turn % 2 == 0 else (CLIENTS, 1):
            with open_server(slots) as send:
                found[slots].append(serve(send, sizes.each))
    one, batched = found[1], found[CLIENTS]
    speeds = [median(load.requests / load.seconds for load in loads) for loads in (one, batched)]
    waits = [median(load.p95 for load in loads) for loads in (one, batched)]
    return [
        *(name, CLIENTS, *(f"{speed:.2f}" for speed in speeds), f"{speeds[1] / speeds[0]:.1f}"),
        *(*(f"{wait:.3f}" for wait in waits), f"{waits[0] / waits[1]:.1f}"),
    ]


def serve(send: Send, each: int) -> Load:
    """Serve all clients until each has its answers."""
    load = Load(CLIENTS * each)

    async def run() -> None:
        began = time.process_time()
        await asyncio.gather(*(send_all(client) for client in range(CLIENTS)))
        load.seconds = time.process_time() - began

    async def send_all(client: int) -> None:
        for number in range(each):
            await send(load, client * each + number)

    asyncio.run(run())
    return load


def open_speech(folder: Path, size: ModelSize, sizes: Sizes) -> OpenServer:
    """Servers of a voice with random weights."""
    if not folder.exists():
        _voice.build(folder, size)
        add_named_speaker(folder)
    voice = open_synthesizer(folder)

    def settings(seed: int) -> SpeechSampling:
        return SpeechSampling(seed=seed, max_seconds=sizes.frames / FRAME_RATE)

    @contextmanager
    def open_server(slots: int) -> Iterator[Send]:
        queue = SpeechQueue({"voice": voice}, CLIENTS, slots, deadline_seconds=PATIENCE)

        async def send(load: Load, seed: int) -> None:
            began, parts = time.process_time(), 0
            with suppress(CutOffError):  # random weights do not end their speech
                async for wave in queue.speak("voice", SpeechRequest(TEXT, "ann"), settings(seed), str(seed)):
                    if not parts:
                        load.first_part.append(time.process_time() - began)
                    parts += 1
                    load.results.setdefault(seed, []).append(wave.tobytes())

        yield send
        queue._scheduler.close()  # the voice stays open for the next server

    require_same_results(open_server)
    return open_server


def open_chats(tokenizer: Any, width: int, sizes: Sizes) -> OpenServer:
    """Servers of a chat model with random weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=8,
        num_attention_heads=max(2, width // 64),
        num_key_value_heads=max(1, width // 128),
        head_dim=64,
        initializer_range=0.05,
    )
    loaded = LoadedModel(AutoModelForCausalLM.from_config(config).eval(), tokenizer, [])
    served = ServedModel(loaded, 0, 4096, sizes.answer)
    if (obstacle := find_batching_obstacle(loaded, CLIENTS)) is not None:
        raise SystemExit(f"the chat model is not batched: {obstacle}")

    @contextmanager
    def open_server(slots: int) -> Iterator[Send]:
        lane = open_lane(served, slots, None if slots > 1 else "one at a time")
        chats = ChatQueue({"chat": served}, {"chat": lane}, CLIENTS, PATIENCE)

        async def send(load: Load, seed: int) -> None:
            prompt = torch.randint(len(tokenizer), (sizes.prompt,), generator=torch.Generator().manual_seed(seed)).tolist()
            began, parts = time.process_time(), 0
            async for progress in chats.answer("chat", AnswerRequest(prompt, CodeSampler(False), seed, sizes.answer), str(seed)):
                if not parts:
                    load.first_part.append(time.process_time() - began)
                parts += 1
                load.results.setdefault(seed, []).append((progress.piece.text if progress.piece else "").encode())

        yield send
        chats.close()

    require_same_results(open_server)
    return open_server


def require_same_results(open_server: OpenServer) -> None:
    """Stop if the two ways do not give the same results: their times would then say nothing."""
    results = []
    for slots in (1, CLIENTS):
        with open_server(slots) as send:
            load = serve(send, 1)
        results.append({seed: b"".join(parts) for seed, parts in load.results.items()})
    if results[0] != results[1] or len(results[0]) != CLIENTS:
        raise SystemExit("the two ways give different results, so their times say nothing")


if __name__ == "__main__":
    main()
