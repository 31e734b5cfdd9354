"""What stands beside our way of doing a thing, as gpu_beside.py tables it. Run by gpu_beside.py.

usage: _gpu_beside.py bases|overhead|ways|speech|saving FOLDER; prints rows of gpu_beside.py's table as JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from benchmarks import _gpu, _timing, _voice, generation, voice_ways
from benchmarks._by_hand import bare_step, check_alike, filled, optimizer_of, stock_heads, stock_sums
from benchmarks._gpu import ROOT, Scale
from benchmarks._overhead_of_ranks import our_step
from finetune import assembly, batches, checkpoint, files, loop, world
from finetune.config import Config, resolve
from finetune.loop import Progress
from finetune.parallel import own_part
from finetune.step import Training, loader_of, train_step
from recipes.llm_sft.recipe import RECIPE as CHAT
from recipes.voice_clone.layout import Ids, Processor
from recipes.voice_clone.recipe import RECIPE as VOICE

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ALIKE = 0.05
"""Nats by which two bf16 losses of one model may differ."""


def compared(model: str, measured: str, here: Sequence[float], beside: str, that: Sequence[float]) -> None:
    """A row, of seconds."""
    _gpu.tell([model, measured, f"{median(here):.3f} s", beside, f"{median(that):.3f} s", _timing.ratio(that, here)])


def overhead_config(folder: Path) -> Config:
    return _voice.run_config(folder / "voice", "run", precision="bf16")


def ways_config(folder: Path) -> Config:
    """At this rate no weight moves, so that every step of every way has the same loss."""
    return _voice.run_config(folder / "voice", "ways", precision="bf16", micro_tokens=4096, lr=1e-30, weight_decay=0)


def chat_config(folder: Path, scale: Scale) -> Config:
    given = {
        "model.source": folder / "chat" / "base", "data.train": folder / "chat" / "train.jsonl", "run.dir": folder / "chat" / "run",
        "train.micro_tokens": scale.micro, "train.steps": 10,
    }  # fmt: skip
    return resolve("llm_sft", CHAT.Options, [], [(key, str(value)) for key, value in given.items()])


def overhead(folder: Path, scale: Scale) -> None:
    """Our step beside a bare loop around the package's modules with autocast, on the same batch."""
    joined = world.join((), folder)
    config = overhead_config(folder)
    ours, batch = our_step(joined, config)
    with stock_heads():
        stock = filled(config, DEVICE)
    sums = partial(stock_sums, by_frame=False)
    acts = {"ours": ours, "bare": bare_step(stock, optimizer_of(stock, config), config, [batch], sums=sums)}
    check_alike({name: act() for name, act in acts.items()}, ALIKE)
    taken = _timing.in_turns(acts, scale.rounds, warm_up=2, clock=_gpu.clock)
    compared("voice", "a step", taken["ours"], "a bare loop", taken["bare"])
    world.leave()


def ways(folder: Path, _: Scale) -> None:
    """The ways of voice_ways.py."""
    joined = world.join((), folder)
    config = ways_config(folder)
    training, progress = assembly.build(config, VOICE, joined)
    step = next(batches.steps(batches.Order.of(config), training.rows.lengths, progress.place, epochs=None))
    found = voice_ways.ways_of(training, step)
    acts = voice_ways.trainers(training, found)
    check_alike({name: acts[name]() for name, way in found.items() if way.share == 1.0}, ALIKE)
    taken = _timing.in_turns(acts, 2, warm_up=0, clock=_gpu.clock)
    for name in list(found)[1:]:
        compared("voice", f"a step on {len(training.rows)} clips", taken[voice_ways.OURS], name, taken[name])
    world.leave()


def speech(folder: Path, scale: Scale) -> None:
    """Codes by the stock package beside ours: frames a second, and how many codes agree, since bf16 rounds by the shape of a product."""
    from recipes.voice_clone import stock

    tts = stock.load(folder / "voice" / "base")
    ids = Ids.of(json.loads((folder / "voice" / "base" / "config.json").read_text()))
    processor = Processor(lambda text: {"input_ids": tts._tokenize_texts([text])[0][0].tolist()}, ids, {})
    frames = scale.frames
    said = generation.codes_of(tts.model, processor, 1, frames)
    theirs, ours = (torch.tensor(said[way]()[0]) for way in ("stock", "here"))
    shared = min(len(theirs), len(ours))
    taken = _timing.in_turns(said, 2, warm_up=1, clock=_gpu.clock)
    compared("voice", f"{frames} frames of codes", taken["here"], "the stock package", taken["stock"])
    agree = float((theirs[:shared] == ours[:shared]).float().mean())
    _gpu.tell(["voice", "frames / s", f"{frames / median(taken['here']):.1f}", "codes that agree", f"{agree:.1%}", ""])


def saving(folder: Path, scale: Scale) -> None:
    """How long a save holds the loop, a resume takes, and an export, with the memory that it needs."""
    joined = world.join((), folder)
    training = chat_training(folder, scale, joined)
    saver = checkpoint.Saver(joined, training.config.run.dir, keep=2, asynchronous=True)
    holds = timed(lambda: loop.save(training, Progress(1), saver))
    writes = timed(saver.finish)
    saver.close()
    resumes = timed(lambda: assembly.resume(training))
    exported(folder, training)
    files.discard(checkpoint.folder_of(training.config.run.dir))  # two of them would not fit the disk
    kept = folder / "whole.pt"
    saves = timed(lambda: torch.save(whole_state(training), kept))
    loads = timed(lambda: load_whole(training, kept))
    compared("chat", "a save holds the loop", [holds], "torch.save", [saves])
    compared("chat", "a save, to its commit", [holds + writes], "torch.save", [saves])
    compared("chat", "resume, every byte verified", [resumes], "torch.load", [loads])
    world.leave()


def timed(act: Callable[[], object]) -> float:
    return _timing.taken(act, _gpu.clock)


def chat_training(folder: Path, scale: Scale, joined: world.World) -> Training:
    """A run of the chat model that has trained one step."""
    config = chat_config(folder, scale)
    training, progress = assembly.build(config, CHAT, joined)
    loader = loader_of(training, training.rows)
    train_step(training, loader.turns(next(loop.steps_left(training, progress)).micros), step=0)
    loader.close()
    return training


def exported(folder: Path, training: Training) -> None:
    """A row of the export's time, and of its memory beside the largest tensor."""
    command = [sys.executable, ROOT / "benchmarks" / "_export_peak.py", training.config.run.dir, folder / "export", "llm_sft"]
    done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    largest = max(4 * parameter.numel() for parameter in training.model.parameters())
    beside = f"{found['above_imports'] / 2**20:,.0f} MiB", "the largest tensor", f"{largest / 2**20:,.0f} MiB"
    _gpu.tell(
        ["chat", f"export, {found['seconds']:.1f} s of a processor: its memory", *beside, f"{largest / max(1, found['above_imports']):.2f}"]
    )


def whole_state(training: Training) -> dict[str, Tensor]:
    """As one would keep it by hand: tensors by name."""
    tensors = checkpoint.training_tensors(training.model, training.optimizer, training.loaded.buffers)
    return {name: own_part(tensor) for name, tensor in tensors.items()}


@torch.no_grad()
def load_whole(training: Training, path: Path) -> None:
    own = whole_state(training)
    for name, tensor in torch.load(path, map_location="cpu", weights_only=True).items():
        own[name].copy_(tensor)


def main() -> None:
    part, folder = sys.argv[1], Path(sys.argv[2])
    scale = _gpu.scale_of(folder)
    parts = {"bases": _gpu.make_bases, "overhead": overhead, "ways": ways, "speech": speech, "saving": saving}
    parts[part](folder, scale)


if __name__ == "__main__":
    main()
