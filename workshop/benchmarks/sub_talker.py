"""The code predictor on all frames of a batch at once, as voice_clone trains it, compared with a loop that calls it frame by frame.

Each frame is a sequence of its own, so nothing orders the frames: B clips of T frames are one call on B·T sequences of 16 steps. A loop
over time makes T calls of the package's own forward on B sequences instead. Both give the same loss, which is checked first.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor, nn

from overtone.recipes.qwen3_tts.model.config_factory import CODEBOOKS, SMALL
from overtone.recipes.qwen3_tts.model.modeling import frame_embeddings, run_code_predictor, sum_codebook_losses
from overtone.recipes.voice_clone.recipe import RECIPE
from workshop.benchmarks import _table, _timing, _voice
from workshop.benchmarks._by_hand import check_equal_losses, load_filled_model, stock_heads, stock_others

COLUMNS = ("model", "at once", "loop over time", "loop / at once")
NOTE = (
    "Embedding the codes, the predictor, forward and backward in one process on one thread of a CPU, fp32; ratio of median processor times "
    "of {rounds} runs each, in turns. What is saved is the fixed cost of calls, those of the embeddings among them, so the ratio lies "
    "between the number of frames (arithmetic is free) and 1 (arithmetic is all). Whole training steps are in `voice_ways`."
)
Loss = Callable[[], Tensor]


def main() -> None:
    flags = _table.read_flags(__doc__)
    torch.set_num_threads(1)
    settings, rounds = (
        ([("nano", 2, 10)], 3) if flags.quick else ([("nano", 1, 100), ("nano", 2, 100), ("nano", 8, 100), ("mini", 1, 100)], 25)
    )
    with tempfile.TemporaryDirectory() as folder:
        rows = [compare(Path(folder), size, clips, frames, rounds) for size, clips, frames in settings]
    _table.publish("sub_talker", flags, COLUMNS, rows, NOTE.format(rounds=rounds))


def compare(folder: Path, size: str, clips: int, frames: int, rounds: int) -> list[object]:
    """A line of the table."""
    config = _voice.run_config(_voice.make(folder / f"{size}-{clips}", SMALL[size], clips, frames), f"run-{size}-{clips}")
    RECIPE.prepare(config)
    ours: Any = load_filled_model(config, torch.device("cpu"))
    with stock_heads():
        stock: Any = load_filled_model(config, torch.device("cpu"))
    chance, width = torch.Generator().manual_seed(0), ours.talker.config.hidden_size
    states = torch.randn(clips * frames, width, generator=chance)
    codes = torch.randint(SMALL[size].codebook, (clips * frames, CODEBOOKS), generator=chance)
    acts = {
        "at once": partial(learned, ours, partial(all_frames, ours.talker, states, codes)),
        "loop": partial(learned, stock, partial(frame_by_frame, stock.talker, states, codes, frames)),
    }
    check_equal_losses({name: act() / len(codes) for name, act in acts.items()}, 1e-4)
    taken = _timing.medians(acts, rounds)
    shapes = f"1 call on [{clips * frames}, {CODEBOOKS}, {width}]", f"{frames} calls on [{clips}, {CODEBOOKS}, {width}]"
    return [size, *shapes, f"{taken['loop'] / taken['at once']:.1f}"]


def learned(model: nn.Module, loss: Loss) -> float:
    """The loss, after its backward."""
    model.zero_grad(set_to_none=True)
    found = loss()
    found.backward()
    return found.item()


def all_frames(talker: Any, states: Tensor, codes: Tensor) -> Tensor:
    embedded = frame_embeddings(talker, codes)
    nll, _ = sum_codebook_losses(talker.code_predictor.lm_head, *run_code_predictor(talker.code_predictor, states, embedded, codes))
    return nll


def frame_by_frame(talker: Any, states: Tensor, codes: Tensor, frames: int) -> Tensor:
    """All clips are equally long here, so frame t of each of them is every T-th row: the loop wastes nothing on padding."""
    return torch.stack([stock_others(talker, states[t::frames], codes[t::frames]) for t in range(frames)]).sum()


if __name__ == "__main__":
    main()
