"""A training step of voice_clone, beside the two public ways of training the same model: its makers' batches, and a loop over frames.

All ways learn the same clips with the same correct loss, which is checked, in one optimizer step of the same optimizer:
- `voice_clone`: clips of about one length side by side, up to `train.micro_tokens` positions, all frames' codes predicted in one call;
- `voice_clone, sub_frames`: the same, but codebooks 1 to 15 are learned from a share of the frames, drawn anew for each micro-batch;
- `2 clips, padded` and `32 clips, padded`: clips in random order, padded to the longest, as the script and the page of the model's makers
  have it (without their mistakes in the loss);
- `a loop over frames`: two such clips, and for each clip a call of the code predictor for each of its frames, up to 100.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import Tensor

from benchmarks import _table, _timing, _voice
from benchmarks.voice_batches import KINDS
from finetune import assembly, batches, world
from finetune.batches import Loader, MicroBatch, Step, Turn
from finetune.step import Training, train_step
from finetune.world import World
from recipes.voice_clone import speech_model
from recipes.voice_clone.recipe import RECIPE
from recipes.voice_clone.shapes import FRAME_RATE
from recipes.voice_clone.tiny import SENTENCES

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
    """How one optimizer step's clips are trained on."""

    turns: list[Turn]
    share: float = 1.0
    """Of the frames, for codebooks 1 to 15."""
    by_frame: bool = False
    """Whether the code predictor is called for each frame by itself."""

    def calls(self) -> int:
        """Of the code predictor, forward."""
        return sum(int(turn.batch.tensors["frame_mask"].sum()) for turn in self.turns) if self.by_frame else len(self.turns)

    def positions(self) -> int:
        """Of the talker, padding included."""
        return sum(turn.batch.tensors["valid"].numel() for turn in self.turns)


def main() -> None:
    flags = _table.read_flags(__doc__)
    torch.set_num_threads(1)
    sizes, clips, rounds = (["nano"], 4, 1) if flags.quick else (["nano", "mini"], 32, 7)
    with tempfile.TemporaryDirectory() as folder:
        joined = world.join((), Path(folder))
        rows = [line for size in sizes for line in compare(joined, Path(folder), size, clips, rounds)]
        world.leave()
    _table.publish("voice_ways", flags, COLUMNS, rows, NOTE.format(clips=clips, rounds=rounds))


def compare(joined: World, folder: Path, size: str, clips: int, rounds: int) -> list[list[object]]:
    """The lines of one model."""
    made = _voice.make_clips(folder / size, size, [(text_of(frames), frames) for frames in frames_of(clips)])
    # At this rate no weight moves by a bit of it, so that every step of every way has the same loss.
    config = _voice.run_config(made, f"run-{size}", micro_tokens=BUDGET, lr=1e-30, weight_decay=0)
    training, progress = assembly.build(config, RECIPE, joined)
    step = next(batches.steps(batches.Order.of(config), training.rows.lengths, progress.place, epochs=None))
    ways = ways_of(training, step)
    acts = {name: trainer(training, way) for name, way in ways.items()}
    check_alike({name: acts[name]() for name, way in ways.items() if way.share == 1.0}, 1e-4)
    taken = _timing.in_turns(acts, rounds, warm_up=1)
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


def ways_of(training: Training, step: Step) -> dict[str, Way]:
    """Every way over the clips of `step`, voice_clone's own first."""
    loader = Loader(training.rows, RECIPE, training.loaded.processor, rank=0, size=1)
    ours = loader.turns(step.micros)
    shuffled = np.random.default_rng(1).permutation([row for micro in step.micros for row in micro.ids]).tolist()
    by_two, by_many = (padded(loader, training, shuffled, clips) for clips in (2, 32))
    loader.close()
    shares = {f"{OURS}, sub_frames {share:g}": Way(ours, share) for share in SHARES}
    return {
        OURS: Way(ours), **shares, "32 clips, padded": Way(by_many), "2 clips, padded": Way(by_two),
        OVER_FRAMES: Way(by_two, by_frame=True),
    }  # fmt: skip


def padded(loader: Loader, training: Training, rows: list[int], clips: int) -> list[Turn]:
    """Micro-batches of so many clips as they come."""
    lengths = training.rows.lengths
    groups = [tuple(rows[start : start + clips]) for start in range(0, len(rows), clips)]
    micros = [MicroBatch(group, int(lengths[list(group)].sum()), key=0) for group in groups]
    return [Turn(micro, loader.batch(micro), counts=True) for micro in micros]


def trainer(training: Training, way: Way) -> Callable[[], float]:
    """A step in one way; returns its loss."""
    model: Any = training.model

    def act() -> float:
        model.sub_frames = way.share
        predict = one_by_one if way.by_frame else at_once
        with mock.patch.object(speech_model, "other_codebooks", predict):
            return train_step(training, way.turns, step=0)["loss"]

    return act


at_once = speech_model.other_codebooks


def one_by_one(talker: Any, states: Tensor, embedded: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """As `other_codebooks`, one frame after the other."""
    each = [at_once(talker, states[t : t + 1], embedded[t : t + 1], codes[t : t + 1])[0] for t in range(len(codes))]
    return torch.cat(each), codes[:, 1:]


def check_alike(losses: dict[str, float], tolerance: float) -> None:
    """Ways that learn something else would not be ways of doing the same."""
    if max(losses.values()) - min(losses.values()) > tolerance:
        raise SystemExit(f"the ways do not learn alike, so their times say nothing: {losses}")


def line(size: str, name: str, way: Way, taken: list[float], ours: list[float], tokens: int, frames: int) -> list[object]:
    seconds = median(taken)
    against = "1" if name == OURS else _timing.ratio(taken, ours)
    made = [len(way.turns), f"{way.positions():,}", f"{way.calls():,}"]
    return [size, name, *made, f"{tokens / seconds:,.0f}", f"{frames / seconds:,.0f}", against]


if __name__ == "__main__":
    main()
