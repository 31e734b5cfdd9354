"""The code predictor over all frames of a batch at once, as voice_clone trains it, against a loop over time that calls it frame by frame.

Each frame is a sequence of its own, so nothing orders the frames: B clips of T frames are one call on B·T sequences of 16 steps. A loop
over time makes T calls on B sequences instead. Both give the same loss, which is checked first.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn

from benchmarks import _table, _timing, _voice
from finetune import models
from finetune.config import Config
from finetune.recipe import Batch
from finetune.step import objective
from recipes.voice_clone.recipe import RECIPE
from recipes.voice_clone.shapes import CODEBOOKS, SMALL
from recipes.voice_clone.speech_model import (
    by_book,
    first_codebook,
    frame_embeddings,
    input_embeddings,
    other_codebooks,
    states_before_frames,
    talker_states,
)

COLUMNS = ("model", "measured", "at once", "loop over time", "losses differ by", "loop / at once")
NOTE = (
    "Forward and backward in one process on one thread of a CPU, fp32; ratio of median processor times of {rounds} runs each, in turns. "
    "What is saved is the fixed cost of a call, so the ratio lies between the number of frames (arithmetic is free) and 1 "
    "(arithmetic is all)."
)
Loss = Callable[[], Tensor]


def main() -> None:
    flags = _table.read_flags(__doc__)
    torch.set_num_threads(1)
    settings, rounds = (
        ([("nano", 2, 10)], 3) if flags.quick else ([("nano", 1, 100), ("nano", 2, 100), ("nano", 8, 100), ("mini", 1, 100)], 25)
    )
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for size, clips, frames in settings for row in compare(Path(folder), size, clips, frames, rounds)]
    note = NOTE.format(rounds=rounds)
    _table.publish("sub_talker", flags, COLUMNS, rows, note)


def compare(folder: Path, size: str, clips: int, frames: int, rounds: int) -> list[list[object]]:
    """Two lines of the table: the code predictor by itself, and the whole training step up to the update."""
    config = _voice.run_config(_voice.make(folder / f"{size}-{clips}", SMALL[size], clips, frames), f"run-{size}-{clips}")
    model, batch = load(config)
    width = model.talker.config.hidden_size
    shapes = f"1 call on [{clips * frames}, {CODEBOOKS}, {width}]", f"{frames} calls on [{clips}, {CODEBOOKS}, {width}]"
    measured = {"code predictor": predictor_alone(model, batch, frames), "training step": whole_step(model, batch, frames)}
    return [[size, part, *shapes, *figures(model, *variants, rounds)] for part, variants in measured.items()]


def figures(model: nn.Module, at_once: Loss, over_time: Loss, rounds: int) -> list[str]:
    """How far the two losses are apart, which must be nothing, and the ratio of their times."""
    apart = abs(at_once().item() - over_time().item())
    if apart > 1e-5:
        raise SystemExit(f"the two ways give losses that differ by {apart:.2g}, so their times say nothing")
    taken = _timing.medians({"at once": lambda: trained(model, at_once), "loop": lambda: trained(model, over_time)}, rounds)
    return [f"{apart:.0e}", f"{taken['loop'] / taken['at once']:.1f}"]


def trained(model: nn.Module, loss: Loss) -> None:
    model.zero_grad(set_to_none=True)
    loss().backward()


def load(config: Config) -> tuple[Any, Batch]:
    """The model with its weights, and all rows as one batch."""
    RECIPE.prepare(config)
    loaded = RECIPE.load(config)
    models.materialise(loaded.model, loaded.base, loaded.buffers, torch.device("cpu"), config.run.seed)
    assert config.data.train is not None
    rows = [json.loads(line) for line in config.data.train.read_text().splitlines()]
    return loaded.model, RECIPE.collate([RECIPE.read(row, loaded.processor) for row in rows])


def predictor_alone(model: Any, batch: Batch, frames: int) -> tuple[Loss, Loss]:
    """The mean over all targets of codebooks 1 to 15, from the same given states."""
    with torch.no_grad():
        states, embedded, codes, _ = predictor_inputs(model, batch)
    states.requires_grad_()
    embedded.requires_grad_()
    mean = 1 / batch.targets["sub"]
    return (
        lambda: mean * all_frames(model.talker, states, embedded, codes),
        lambda: mean * frame_by_frame(model.talker, states, embedded, codes, frames),
    )


def whole_step(model: Any, batch: Batch, frames: int) -> tuple[Loss, Loss]:
    """The recipe's own loss, and the same with the predictor in a loop."""

    def looped() -> Tensor:
        states, embedded, codes, hidden = predictor_inputs(model, batch)
        main, _ = model.talker.codec_head(*first_codebook(hidden, batch.tensors["labels"]))
        sub = frame_by_frame(model.talker, states, embedded, codes, frames)
        return main / batch.targets["main"] + model.weights["sub"] * sub / batch.targets["sub"]

    counts = {name: float(count) for name, count in batch.targets.items()}
    return lambda: objective(RECIPE.loss(model, batch), counts), looped


def predictor_inputs(model: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States [B·T, H], embeddings [B·T, 16, H] and codes [B·T, 16] of all frames, clip after clip; and the talker's states [B, S, H]."""
    frame_mask = batch.tensors["frame_mask"]
    codes = batch.tensors["codes"][frame_mask]
    embedded = frame_embeddings(model.talker, codes)
    hidden = talker_states(model.talker, input_embeddings(model.talker, model.speaker_vectors, batch.tensors, embedded))
    return states_before_frames(hidden, frame_mask), embedded, codes, hidden


def all_frames(talker: Any, states: Tensor, embedded: Tensor, codes: Tensor) -> Tensor:
    nll, _ = by_book(talker.code_predictor.lm_head, *other_codebooks(talker.code_predictor, states, embedded, codes))
    return nll


def frame_by_frame(talker: Any, states: Tensor, embedded: Tensor, codes: Tensor, frames: int) -> Tensor:
    """All clips are equally long here, so frame t of each of them is every T-th row: the loop wastes nothing on padding."""
    each = [all_frames(talker, states[t::frames], embedded[t::frames], codes[t::frames]) for t in range(frames)]
    return torch.stack(each).sum()


if __name__ == "__main__":
    main()
