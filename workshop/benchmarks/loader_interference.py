"""Measures how much the data loader, on another thread of the same interpreter, slows the training thread down.

The training thread of a GPU run issues operations, each of which takes the interpreter for a few microseconds; what the loader's thread
does in Python takes it away. Beside the loader, which reads cached samples, is the same loader with samples that it tokenizes.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from overtone.finetune.config import Config, on_disk, resolve
from overtone.finetune.data import batching, cached_samples, sample_cache_key
from overtone.finetune.data.batching import Loader, MicroBatch, Order, Place, RankBatch, Step
from overtone.finetune.data.dataset_opening import DataOpener
from overtone.finetune.data.row_measurement import LengthLimit
from overtone.finetune.distributed import process_group
from overtone.finetune.distributed.process_group import World
from overtone.finetune.recipe import Recipe, Sample, find_recipe
from overtone.recipes.llm_sft import recipe as chat
from overtone.recipes.llm_sft.model import tiny_checkpoint
from overtone.recipes.qwen3_tts.model.config_factory import SMALL
from overtone.recipes.voice_clone import recipe as voice
from workshop.benchmarks import _table, _timing, _voice
from workshop.benchmarks.voice_ways import frames_of, text_of

OPERATIONS = {"llm_sft": 9_400, "voice_clone": 12_700}
"""That one micro-batch issues, forward and backward: Qwen3-1.7B and Qwen3-TTS 0.6B, counted by a dispatch mode."""
CHATS, CLIPS, MICRO_BATCHES, ROUNDS = 80, 320, 2, 5
QUICK = (20, 60, 1, 2)
WORDS = ("letters", "harbour", "because", "morning", "question", "answer", "written", "between", "nothing", "simple", "another", "window")
COLUMNS = (
    *("recipe", "samples come from", "positions a micro-batch", "loader, ms a micro-batch", "of the step", "op rate / alone"),
    "processor",
)
NOTE = (
    "The training thread issues as many operations as a micro-batch of a real model, forward and backward (9,400 for Qwen3-1.7B, 12,700 "
    "for Qwen3-TTS 0.6B), through blocks that are eight wide, and waits for no arithmetic, so its step is about the shortest that the host "
    "allows. Chats of 1,500 to 2,500 tokens, packed to 8,192 positions; sentences of speech, padded to 4,096. The loader's milliseconds "
    "are processor time of its thread, more than its time in the interpreter. Op rate: operations by the seconds in which the training "
    "thread ran, or waited for anything but a core (clock less the kernel's run delay): what others take of the machine is not counted. "
    "Processor: by processor seconds of both threads, as if the loader's never ran beside the other one. Medians of the rounds' own ratios "
    "(smallest–largest), in turns."
)


@dataclass
class Measured:
    """A loader, and the processor seconds of its thread for each step so far."""

    loader: Loader
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        turns = self.loader.turns

        def timed(micros: tuple[MicroBatch, ...]) -> list[RankBatch]:
            began = time.thread_time()
            found = turns(micros)
            self.seconds.append(time.thread_time() - began)
            return found

        self.loader.turns = timed  # the loader calls it on its own thread


class Tokenizing(Loader):
    """The loader as it was before samples were cached."""

    def __init__(self, found: cached_samples.Rows, recipe: Recipe, processor: Any) -> None:
        super().__init__(found, recipe, rank=0, size=1)
        self._file, self._index = found.path.open("rb", buffering=0), found.index
        self._read = lambda raw: recipe.read(json.loads(raw), processor, Path())

    def sample(self, row: int) -> Sample:
        offset, size = self._index[row, :2].tolist()
        return self._read(os.pread(self._file.fileno(), size, offset))


def main() -> None:
    torch.set_num_threads(1)
    flags = _table.read_flags(__doc__)
    chats, clips, micros, rounds = QUICK if flags.quick else (CHATS, CLIPS, MICRO_BATCHES, ROUNDS)
    lines = list[list[object]]()
    with tempfile.TemporaryDirectory() as folder:
        joined = process_group.join((), Path(folder))
        for name, recipe, config in (
            ("llm_sft", chat.RECIPE, chat_config(Path(folder) / "chat", chats)),
            ("voice_clone", voice.RECIPE, voice_config(Path(folder) / "voice", clips)),
        ):
            lines += table(name, recipe, config, joined, micros, rounds)
        process_group.leave()
    _table.publish("loader_interference", flags, COLUMNS, lines, NOTE)


def chat_config(folder: Path, count: int) -> Config:
    """A run on chats of six turns, 1,500 to 2,500 tokens each, with the tiny model's tokenizer."""
    chance = np.random.default_rng(0)
    folder.mkdir()
    with (folder / "train.jsonl").open("w") as file:
        for _ in range(count):
            roles = ["system", *["user", "assistant"] * 3]
            messages = [{"role": role, "content": " ".join(chance.choice(WORDS, int(chance.integers(30, 50))))} for role in roles]
            file.write(json.dumps({"messages": messages}) + "\n")
    given = {
        **{"model.source": tiny_checkpoint.build(folder / "base"), "data.train": folder / "train.jsonl", "run.dir": folder / "run"},
        **{"train.micro_tokens": 8192, "train.global_batch_tokens": 8192, "data.packing": "true"},
    }
    return resolve("llm_sft", chat.RECIPE.Options, [], [(key, str(value)) for key, value in given.items()])


def voice_config(folder: Path, count: int) -> Config:
    """A run on spoken sentences, with the tiny model's tokenizer."""
    _voice.make_clips(folder, SMALL["nano"], [(text_of(frames), frames) for frames in frames_of(count)])
    return _voice.run_config(folder, "run", micro_tokens=4096, global_batch_tokens=4096)


def table(name: str, recipe: Recipe, config: Config, joined: World, micros: int, rounds: int) -> list[list[object]]:
    recipe.prepare(config)
    loaded = recipe.load(config)
    opener = DataOpener(
        cache=config.run.dir / "cache",
        key=sample_cache_key.data_key(config.recipe, config.options, loaded),
        recipe=recipe,
        folder=find_recipe(config.recipe),
        options=config.options,
        limit=LengthLimit.of(config.data, config.train),
        loaded=loaded,
        world=joined,
    )
    path = on_disk(config.data.train)
    assert path is not None
    found = opener.open(path)
    contestants = {"the cache": Measured(Loader(found, recipe, 0, 1)), "tokenizing": Measured(Tokenizing(found, recipe, loaded.processor))}
    check_equal_counts(found, config, *(each.loader for each in contestants.values()))
    work, places = OPERATIONS[name], steps_of(config, found)
    acts: dict[str, Callable[[], None]] = {"alone": partial(issue, micros * work)}
    for label, each in contestants.items():
        acts[label] = partial(beside, each.loader, places, micros, work)
    processor, own = (rates_of(acts, rounds, micros * work, clock) for clock in (time.process_time, clock_of_this_thread))
    lines = list[list[object]]()
    for label, each in contestants.items():
        busy, step = median(each.seconds), work / median(processor["alone"])
        ratios = [_timing.ratio(rates[label], rates["alone"]) for rates in (own, processor)]
        lines.append([name, label, f"{config.train.micro_tokens:,}", f"{1000 * busy:.2f}", f"{busy / step:.1%}", *ratios])
        each.loader.close()
    return lines


def clock_of_this_thread() -> float:
    """Seconds, without those in which this thread could have run and had no core. Source: the kernel's sched-stats.rst (run delay, ns)."""
    _, delay, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return time.perf_counter() - int(delay) / 1e9


def rates_of(acts: dict[str, Callable[[], None]], rounds: int, operations: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Operations a second of each round."""
    return {label: [operations / seconds for seconds in taken] for label, taken in _timing.time_in_turns(acts, rounds, 1, clock).items()}


def steps_of(config: Config, found: cached_samples.Rows) -> Iterator[Step]:
    """One micro-batch each, without end."""
    for step in batching.steps(Order.of(config.run.seed, config.data, config.train), found.lengths, Place(), epochs=None):
        yield from (Step((micro,), step.after) for micro in step.micros)


def check_equal_counts(found: cached_samples.Rows, config: Config, one: Loader, other: Loader) -> None:
    for step in islice(steps_of(config, found), 3):
        tensors = [loader.turns(step.micros)[0].batch.tensors for loader in (one, other)]
        assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[1]) and [*tensors[0]] == [*tensors[1]]


class Block(nn.Module):
    """A residual block of the usual operations, with nothing to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

    def forward(self, states: Tensor) -> Tensor:
        return states + self.inner(states)


class Counted(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


MODEL = nn.Sequential(*(Block() for _ in range(28)))


def pass_through() -> None:
    """Forward and backward."""
    MODEL(torch.ones(4, 8)).sum().backward()


def issue(operations: int) -> None:
    """About so many operations, in whole passes."""
    for _ in range(round(operations / operations_of_a_pass())):
        pass_through()


@functools.cache
def operations_of_a_pass() -> int:
    pass_through()  # the first one makes the gradients
    with Counted() as counted:
        pass_through()
    return counted.count


def beside(loader: Loader, todo: Iterator[Step], steps: int, work: int) -> None:
    """A micro-batch's operations for each of some steps, while the next one's batch is made."""
    for _ in loader.iterate(islice(todo, steps)):
        issue(work)


if __name__ == "__main__":
    main()
