"""A training step of voice_clone, compared with two public ways to train the same model: its makers' batches, and a loop over frames.

All ways learn the same clips with the same correct loss, which is checked, in one optimizer step:
- `voice_clone`: clips of about one length side by side, up to `train.micro_tokens` positions, all frames' codes predicted in one call,
  logits chunk by chunk; with all that a step here does besides (sharding, votes, checks);
- `voice_clone, sub_frames`: the same, but codebooks 1 to 15 are learned from a share of the frames, drawn anew for each micro-batch;
- `32 clips, padded` and `2 clips, padded`: a loop by hand around the package's modules, clips in random order, padded to the longest, as
  the page and the script of the model's makers have it (without their mistakes in the loss);
- `a loop over frames`: the same with two clips, but a call of the code predictor for each frame, up to 100 for a clip.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import nn

from overtone.finetune.config import Config
from overtone.finetune.data import batching
from overtone.finetune.data.batching import Loader, MicroBatch, RankBatch
from overtone.finetune.distributed import process_group
from overtone.finetune.distributed.process_group import World
from overtone.finetune.training import setup
from overtone.finetune.training.step import Training, train_step
from overtone.recipes.qwen3_tts.model.config_factory import FRAME_RATE, SMALL
from overtone.recipes.voice_clone.model.tiny_checkpoint import SENTENCES
from overtone.recipes.voice_clone.recipe import RECIPE
from workshop.benchmarks import _table, _timing, _voice
from workshop.benchmarks._by_hand import Step, bare_step, check_equal_losses, load_filled_model, optimizer_of, stock_heads, stock_sums
from workshop.benchmarks.voice_batches import KINDS

LONGEST = 100
"""Frames of a clip, 8 seconds: the loop over frames is limited to so many calls for a clip, and clips are no longer here."""
BUDGET = 1024
"""`train.micro_tokens`."""
OURS, OVER_FRAMES = "voice_clone", "a loop over frames"
SHARES = (1 / 4, 1 / 16)
COLUMNS = ("model", "way", "micro-batches", "positions computed", "predictor calls", "tokens / s", "frames / s", "its time / voice_clone's")
NOTE = (
    "One optimizer step on {clips} clips of log-normal length (median 3.7 s, at most 8 s), one process on one thread of a CPU, fp32, "
    "{rounds} rounds in turns. Tokens are positions of text and speech without padding, per second of processor time, median; the last "
    "column is of the same round: median (smallest–largest)."
)


@dataclass(frozen=True)
class Way:
    """A way to train on one optimizer step's clips."""

    turns: list[RankBatch]
    share: float = 1.0
    """Share of the frames, for codebooks 1 to 15."""
    by_hand: Literal["no", "at once", "frame by frame"] = "no"
    """If so, how the code predictor is called."""

    def calls(self) -> int:
        """Return the forward calls of the code predictor."""
        return (
            sum(int(turn.batch.tensors["frame_mask"].sum()) for turn in self.turns) if self.by_hand == "frame by frame" else len(self.turns)
        )

    def positions(self) -> int:
        """Return the positions of the talker, padding included."""
        return sum(turn.batch.tensors["valid"].numel() for turn in self.turns)


def main() -> None:
    flags = _table.read_flags(__doc__)
    torch.set_num_threads(1)
    sizes, clips, rounds = (["nano"], 4, 1) if flags.quick else (["nano", "mini"], 32, 7)
    with tempfile.TemporaryDirectory() as folder:
        joined = process_group.join((), Path(folder))
        rows = [line for size in sizes for line in compare(joined, Path(folder), size, clips, rounds)]
        process_group.leave()
    _table.publish("voice_ways", flags, COLUMNS, rows, NOTE.format(clips=clips, rounds=rounds))


def compare(joined: World, folder: Path, size: str, clips: int, rounds: int) -> list[list[object]]:
    """The lines of one model."""
    made = _voice.make_clips(folder / size, SMALL[size], [(text_of(frames), frames) for frames in frames_of(clips)])
    # At this rate no weight moves by a bit of it, so that every step of every way has the same loss.
    config = _voice.run_config(made, f"run-{size}", micro_tokens=BUDGET, lr=1e-30, weight_decay=0)
    training, progress = setup.build(config, RECIPE, joined)
    step = next(batching.steps(training.order, training.rows.lengths, progress.place, epochs=None))
    ways = ways_of(training, step)
    acts = trainers(training, ways)
    check_equal_losses({name: acts[name]() for name, way in ways.items() if way.share == 1.0}, 1e-4)
    taken = _timing.time_in_turns(acts, rounds, warm_up=1)
    frames = sum(int(turn.batch.tensors["frame_mask"].sum()) for turn in ways[OURS].turns)
    return [line(size, name, way, taken[name], taken[OURS], step.tokens, frames) for name, way in ways.items()]


def frames_of(clips: int) -> list[int]:
    """Lengths of spoken sentences, as `voice_batches` has them."""
    mean, deviation, shortest, _ = KINDS["one sentence each"]
    seconds = np.random.default_rng(0).lognormal(mean, deviation, size=clips)
    return [int(frames) for frames in np.clip(np.ceil(seconds * FRAME_RATE), np.ceil(shortest * FRAME_RATE), LONGEST)]


def text_of(frames: int) -> str:
    """About one letter a frame, as people speak."""
    return " ".join(SENTENCES)[:frames]


def ways_of(training: Training, step: batching.Step) -> dict[str, Way]:
    """Every way over the clips of `step`, voice_clone's own first."""
    loader = Loader(training.rows, RECIPE, rank=0, size=1)
    ours = loader.turns(step.micros)
    shuffled = np.random.default_rng(1).permutation([row for micro in step.micros for row in micro.ids]).tolist()
    by_two, by_many = (padded(loader, training, shuffled, clips) for clips in (2, 32))
    loader.close()
    shares = {f"{OURS}, sub_frames {share:g}": Way(ours, share) for share in SHARES}
    return {
        OURS: Way(ours), **shares, "32 clips, padded": Way(by_many, by_hand="at once"),
        "2 clips, padded": Way(by_two, by_hand="at once"), OVER_FRAMES: Way(by_two, by_hand="frame by frame"),
    }  # fmt: skip


def padded(loader: Loader, training: Training, rows: list[int], clips: int) -> list[RankBatch]:
    """Micro-batches of so many clips as they come."""
    lengths = training.rows.lengths
    groups = [tuple(rows[start : start + clips]) for start in range(0, len(rows), clips)]
    micros = [MicroBatch(group, int(lengths[list(group)].sum()), key=0) for group in groups]
    return [RankBatch(micro, loader.batch(micro), counts=True) for micro in micros]


def trainers(training: Training, ways: dict[str, Way]) -> dict[str, Step]:
    """A step in each way. Those by hand share a model, which is another than the run's."""
    with stock_heads():
        stock = load_filled_model(training.config, training.world.device)
    by_hand = partial(step_by_hand, stock, optimizer_of(stock, training.config), training.config)
    return {name: our_step(training, way) if way.by_hand == "no" else by_hand(way) for name, way in ways.items()}


def our_step(training: Training, way: Way) -> Step:
    model: Any = training.model

    def act() -> float:
        model.sub_frames = way.share
        return train_step(training, way.turns, step=0)["loss"]

    return act


def step_by_hand(stock: nn.Module, optimizer: torch.optim.AdamW, config: Config, way: Way) -> Step:
    sums = partial(stock_sums, by_frame=way.by_hand == "frame by frame")
    return bare_step(stock, optimizer, config, [turn.batch for turn in way.turns], sums=sums)


def line(size: str, name: str, way: Way, taken: list[float], ours: list[float], tokens: int, frames: int) -> list[object]:
    seconds = median(taken)
    against = "1" if name == OURS else _timing.ratio(taken, ours)
    made = [len(way.turns), f"{way.positions():,}", f"{way.calls():,}"]
    return [size, name, *made, f"{tokens / seconds:,.0f}", f"{frames / seconds:,.0f}", against]


if __name__ == "__main__":
    main()
