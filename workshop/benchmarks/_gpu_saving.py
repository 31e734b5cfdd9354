"""Part `saving`: how long a save of a 1.7B chat model in shape holds the loop, until it is whole, a resume, and an export."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.config import Config, resolve
from overtone.finetune.data.batching import RankBatch
from overtone.finetune.distributed.sharding import local_shard
from overtone.finetune.storage import files
from overtone.finetune.training import loop, setup
from overtone.finetune.training.loop import Progress
from overtone.finetune.training.step import Training, make_loader, train_step
from overtone.recipes.llm_sft.recipe import RECIPE as CHAT
from workshop.benchmarks import _gpu, _timing
from workshop.benchmarks._gpu import ROOT, Bench, Scale
from workshop.benchmarks._gpu_figures import Cells, Figure, Part, Table

GIB = 2**30


def chat_config(folder: Path, scale: Scale, run: Path) -> Config:
    given = {
        "model.source": folder / "chat" / "base", "data.train": folder / "chat" / "train.jsonl", "run.dir": run,
        "train.micro_tokens": scale.micro, "train.steps": 10,
    }  # fmt: skip
    return resolve("llm_sft", CHAT.Options, [], [(key, str(value)) for key, value in given.items()])


def saves(bench: Bench) -> list[Cells]:
    """Two saves, since the second finds the first one's memory; and plain copies of the same bytes."""
    training, turns = chat_training(bench)
    saver = saver_of(bench, training)
    rows: list[Cells] = []
    size = state_bytes(training)
    alone = median(timed(partial(train_step, training, turns, 0)) for _ in range(3))
    holds = 0.0
    for step, which in ((1, "first save"), (2, "second save")):
        discard_checkpoints(training)  # two of them might not fit the disk
        holds, beside, writes = save_beside_a_step(training, turns, saver, step)
        rows += [
            [f"{which} of {size / GIB:.1f} GiB: the loop is held", f"{holds:.3f} s", "a step beside it / alone", f"{beside / alone:.2f}"],
            [
                f"{which}: from its beginning to its commit",
                f"{holds + beside + writes:.2f} s",
                "written",
                f"{size / GIB / (beside + writes):.2f} GiB/s",
            ],
        ]
    saver.close()
    discard_checkpoints(training)
    for name, copy in plain_copies(training).items():
        taken = timed(copy)
        rows.append([f"a plain copy of the same, {name}", f"{taken:.3f} s", "second save / it", f"{holds / taken:.2f}"])
    return rows


def save_beside_a_step(training: Training, turns: list[RankBatch], saver: checkpoint.Saver, step: int) -> tuple[float, float, float]:
    """Seconds that a save holds the host, of the training step after it, and until the checkpoint is committed.

    After the save the host does not wait for the device, which is still copying on the save's own stream.
    """
    began = _gpu.clock()
    loop.save(training, Progress(step), saver)
    held = time.perf_counter()
    train_step(training, turns, 0, before_update=saver.before_update)
    trained = _gpu.clock()
    saver.finish()
    return held - began, trained - held, time.perf_counter() - trained


def resume_and_export(bench: Bench) -> list[Cells]:
    """Measure the resume and the export of one checkpoint."""
    training, _ = chat_training(bench)
    saver = saver_of(bench, training)
    loop.save(training, Progress(1), saver)
    saver.finish()
    saver.close()
    resumes = timed(
        lambda: loop.resume(training, loop.find_newest(training.config.run.dir, training.config.checkpoint.copy_to, training.world))
    )
    rows = [["resume, every byte verified", f"{resumes:.2f} s", "read", f"{state_bytes(training) / GIB / resumes:.2f} GiB/s"]]
    rows += exported(bench, training)
    discard_checkpoints(training)
    return rows


def torch_save(bench: Bench) -> list[Cells]:
    """All of the training's state in one file, and back."""
    training, _ = chat_training(bench)
    folder = files.make_folder(bench.fresh("whole"))
    path, size = folder / "state.pt", state_bytes(training) / GIB
    saves = timed(lambda: torch.save(whole_state(training), path))
    loads = timed(lambda: load_whole(training, path))
    files.discard(folder)
    return [
        [f"torch.save of {size:.1f} GiB", f"{saves:.2f} s", "written", f"{size / saves:.2f} GiB/s"],
        ["torch.load into the same tensors", f"{loads:.2f} s", "read", f"{size / loads:.2f} GiB/s"],
    ]


def saver_of(bench: Bench, training: Training) -> checkpoint.Saver:
    return checkpoint.Saver(bench.joined(), training.config.run.dir, keep=1, asynchronous=True)


def discard_checkpoints(training: Training) -> None:
    files.discard(checkpoint.folder_of(training.config.run.dir))


def state_bytes(training: Training) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in whole_state(training).values())


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
    return _timing.time_once(act, _gpu.clock)


def chat_training(bench: Bench) -> tuple[Training, list[RankBatch]]:
    """A run of the chat model that has trained one step, and the turns of that step."""
    config = chat_config(bench.folder, bench.scale, bench.fresh("saving"))
    training, progress = setup.build(config, CHAT, bench.joined())
    loader = make_loader(training, training.rows)
    turns = loader.turns(next(loop.steps_left(training, progress)).micros)
    loader.close()
    train_step(training, turns, 0)
    return training, turns


def exported(bench: Bench, training: Training) -> list[list[str]]:
    """The export's time, and its memory beside the largest tensor."""
    folder = bench.fresh("export")
    command = [sys.executable, ROOT / "workshop" / "benchmarks" / "_export_peak.py", training.config.run.dir, folder, "llm_sft"]
    done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    files.discard(folder)
    largest = max(4 * parameter.numel() for parameter in training.model.parameters())
    memory = f"{found['above_imports'] / 2**20:,.0f} MiB above imports; largest tensor {largest / 2**20:,.0f} MiB"
    return [["export", f"{found['seconds']:.1f} s of a processor", "memory", memory]]


def whole_state(training: Training) -> dict[str, Tensor]:
    """Return the state as one would keep it by hand: tensors by name."""
    tensors = checkpoint.training_tensors(training.model, training.optimizer, training.loaded.buffers)
    return {name: local_shard(tensor) for name, tensor in tensors.items()}


@torch.no_grad()
def load_whole(training: Training, path: Path) -> None:
    own = whole_state(training)
    for name, tensor in torch.load(path, map_location="cpu", weights_only=True).items():
        own[name].copy_(tensor)


NOTE = (
    "The model of `chat`, fp32 masters and AdamW's moments. Seconds by a clock, with the device idle before and after; single saves, so "
    "figures scatter. A step beside a save stands over the median of three steps alone."
)
FIGURES = (
    Figure("saves", 100.0, saves),
    Figure("resume and export", 100.0, resume_and_export),
    Figure("torch.save", 80.0, torch_save),
)
PART = Part((Table(("measured", "here", "beside it", "that"), FIGURES, NOTE),), _gpu.chat_base, 75.0)
