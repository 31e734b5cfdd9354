"""Part `saving`: how long a save of a 1.7B chat model in shape holds the loop, until it is whole, a resume, and an export."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks import _gpu, _timing
from benchmarks._gpu import ROOT, Bench, Scale
from benchmarks._gpu_figures import Cells, Figure, Part, Table
from finetune.checkpointing import checkpoint
from finetune.config import Config, resolve
from finetune.distributed.sharding import own_part
from finetune.storage import files
from finetune.training import loop, setup
from finetune.training.loop import Progress
from finetune.training.step import Training, loader_of, train_step
from recipes.llm_sft.recipe import RECIPE as CHAT

GIB = 2**30


def chat_config(folder: Path, scale: Scale, run: Path) -> Config:
    given = {
        "model.source": folder / "chat" / "base", "data.train": folder / "chat" / "train.jsonl", "run.dir": run,
        "train.micro_tokens": scale.micro, "train.steps": 10,
    }  # fmt: skip
    return resolve("llm_sft", CHAT.Options, [], [(key, str(value)) for key, value in given.items()])


def saving(bench: Bench) -> list[Cells]:
    """Two saves, since the second finds the first one's memory; a resume; and beside them torch.save and plain copies of the same bytes."""
    training, run_step = chat_training(bench)
    saver = checkpoint.Saver(bench.joined(), training.config.run.dir, keep=2, asynchronous=True)
    rows: list[Cells] = []
    size = sum(tensor.numel() * tensor.element_size() for tensor in whole_state(training).values())
    alone = median(timed(run_step) for _ in range(3))
    holds = 0.0
    for step, which in ((1, "first save"), (2, "second save")):
        holds = timed(lambda step=step: loop.save(training, Progress(step), saver))
        beside = timed(run_step)
        writes = timed(saver.finish)
        rows.append(
            [f"{which} of {size / GIB:.1f} GiB: the loop is held", f"{holds:.3f} s", "a step beside it / alone", f"{beside / alone:.2f}"]
        )
        rows.append(
            [
                f"{which}: from its beginning to its commit",
                f"{holds + beside + writes:.2f} s",
                "written",
                f"{size / GIB / (beside + writes):.2f} GiB/s",
            ]
        )
    saver.close()
    for name, copy in plain_copies(training).items():
        taken = timed(copy)
        rows.append([f"a plain copy of the same, {name}", f"{taken:.3f} s", "second save / it", f"{holds / taken:.2f}"])
    resumes = timed(lambda: loop.resume(training))
    rows += exported(bench, training)
    files.discard(checkpoint.folder_of(training.config.run.dir))  # two of them would not fit the disk
    kept = bench.fresh("whole")
    saves = timed(lambda: torch.save(whole_state(training), kept))
    loads = timed(lambda: load_whole(training, kept))
    kept.unlink()
    rows.append(["resume, every byte verified", f"{resumes:.2f} s", "torch.load into the same tensors", f"{loads:.2f} s"])
    rows.append(["torch.save of all of it", f"{saves:.2f} s", "it / second save's hold", f"{saves / holds:.1f}"])
    return rows


def plain_copies(training: Training) -> dict[str, Callable[[], object]]:
    """Tensor by tensor to host memory: fresh, and pinned before."""
    state = whole_state(training)
    copies: dict[str, Callable[[], object]] = {"to fresh memory": lambda: [tensor.to("cpu", copy=True) for tensor in state.values()]}
    if torch.cuda.is_available():
        largest = max(tensor.numel() * tensor.element_size() for tensor in state.values())
        pinned = torch.empty(largest, dtype=torch.uint8, pin_memory=True)

        def to_pinned() -> None:
            for tensor in state.values():
                size = tensor.numel() * tensor.element_size()
                pinned[:size].view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)

        copies["to pinned memory that is there"] = to_pinned
    return copies


def timed(act: Callable[[], object]) -> float:
    return _timing.taken(act, _gpu.clock)


def chat_training(bench: Bench) -> tuple[Training, Callable[[], object]]:
    """A run of the chat model that has trained one step, and that step."""
    config = chat_config(bench.folder, bench.scale, bench.fresh("saving"))
    training, progress = setup.build(config, CHAT, bench.joined())
    loader = loader_of(training, training.rows)
    turns = loader.turns(next(loop.steps_left(training, progress)).micros)
    loader.close()

    def step() -> object:
        return train_step(training, turns, step=0)

    step()
    return training, step


def exported(bench: Bench, training: Training) -> list[Cells]:
    """The export's time, and its memory beside the largest tensor."""
    folder = bench.fresh("export")
    command = [sys.executable, ROOT / "benchmarks" / "_export_peak.py", training.config.run.dir, folder, "llm_sft"]
    done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    files.discard(folder)
    largest = max(4 * parameter.numel() for parameter in training.model.parameters())
    memory = f"{found['above_imports'] / 2**20:,.0f} MiB above imports; largest tensor {largest / 2**20:,.0f} MiB"
    return [["export", f"{found['seconds']:.1f} s of a processor", "memory", memory]]


def whole_state(training: Training) -> dict[str, Tensor]:
    """As one would keep it by hand: tensors by name."""
    tensors = checkpoint.training_tensors(training.model, training.optimizer, training.loaded.buffers)
    return {name: own_part(tensor) for name, tensor in tensors.items()}


@torch.no_grad()
def load_whole(training: Training, path: Path) -> None:
    own = whole_state(training)
    for name, tensor in torch.load(path, map_location="cpu", weights_only=True).items():
        own[name].copy_(tensor)


NOTE = (
    "The model of `chat`, fp32 masters and AdamW's moments. Seconds by a clock, with the device idle before and after; single saves, so "
    "figures scatter. A step beside a save stands over the median of three steps alone."
)
PART = Part((Table(("measured", "here", "beside it", "that"), (Figure("saving", 170.0, saving),), NOTE),), _gpu.chat_base, 75.0)
