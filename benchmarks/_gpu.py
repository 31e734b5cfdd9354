"""What both benchmarks of a GPU share: models of released shapes with random weights, their clock, and parts that run within a budget."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import _table, _voice
from finetune import files
from recipes.voice_clone.shapes import RELEASED, SMALL, Width

ROOT = Path(__file__).resolve().parents[1]
QWEN3: dict[str, Any] = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1000000.0, "max_position_embeddings": 40960, "initializer_range": 0.02,
}  # fmt: skip
"""Of Qwen3-1.7B: its `config.json` on the hub."""


@dataclass(frozen=True)
class Scale:
    """How much is computed: on a GPU what the tables are about, or as little as runs through every line."""

    chat: dict[str, Any]
    """What the chat model's shape has of its own."""
    voice: Width
    sequence: int
    """Longest chat, in positions."""
    micro: int
    """`train.micro_tokens` of chats."""
    chats: int
    clips: int
    frames: int
    """Of a clip, at most."""
    rounds: int
    product: int
    """Rows and columns of the matrices whose product is the ceiling."""


FULL = Scale(QWEN3, RELEASED["0.6B"], 4096, 8192, 24, 32, 125, 5, 8192)
"""What fits a GPU of 80 GB by the plan's count, the other model of gpu_beside.py included."""
SMALLEST = Scale({}, SMALL["nano"], 64, 128, 4, 4, 12, 1, 64)


def has_gpu() -> bool:
    """Without importing torch where there can be none."""
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        return False
    import torch

    return torch.cuda.is_available()


def scale_of(folder: Path) -> Scale:
    """The one that the parts of this folder run at."""
    return SMALLEST if json.loads((folder / "scale.json").read_text())["quick"] else FULL


@dataclass(frozen=True)
class Part:
    """What runs in a process of its own, so that its failure is its own."""

    script: str
    """Called with the part's name and the folder; prints a row of the table, as JSON, as soon as it is measured."""
    name: str
    minutes: float
    """It is stopped after so many; what it has measured by then counts."""
    needed: bool = False
    """By other parts: it runs before whichever is chosen."""


@dataclass(frozen=True)
class Report:
    """A table and how it comes about."""

    name: str
    parts: tuple[Part, ...]
    minutes: float
    """In all."""
    columns: tuple[str, ...]
    note: str
    """May name fields of `Scale` in braces."""


def measure(report: Report, purpose: str | None) -> None:
    """What a benchmark of a GPU does, as the flags say."""
    flags = _table.read_flags(purpose, [part.name for part in report.parts if not part.needed])
    if not flags.quick and not has_gpu():
        print(f"no CUDA GPU here: {flags.to / report.name}.md stays as it is (--quick runs through the benchmark on a CPU)")
        return
    with tempfile.TemporaryDirectory() as folder:
        rows, remarks = run_parts(chosen(report, flags.part), Path(folder), flags.quick, min(report.minutes, 9 if flags.part else math.inf))
    said = report.note.format(**vars(SMALLEST if flags.quick else FULL))
    note = " ".join([said, about_machine(), *(f"Not measured: {each}." for each in remarks)])
    _table.publish(report.name, flags, report.columns, rows, note)


def chosen(report: Report, name: str | None) -> tuple[Part, ...]:
    """The parts to run for the one that was asked for by name; all of them for None."""
    return tuple(part for part in report.parts if name is None or part.needed or part.name == name)


def about_machine() -> str:
    """What it ran on, and when."""
    import torch
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    return f"On {device}, {date.today().isoformat()}, torch {torch.__version__}, transformers {transformers.__version__}."


def run_parts(parts: Sequence[Part], folder: Path, quick: bool, minutes: float) -> tuple[list[list[object]], list[str]]:
    """Rows of all parts, and a remark for each that did not come to its end. After `minutes` in all no more begins."""
    files.write_json(folder / "scale.json", {"quick": quick})
    rows: list[list[object]] = []
    remarks: list[str] = []
    over = time.monotonic() + 60 * minutes
    for part in parts:
        left = min(60 * part.minutes, over - time.monotonic())
        found, remark = run_part(part, folder, left) if left > 0 else ([], f"{part.name}: not begun, for lack of time")
        rows += found
        remarks += [remark] if remark else []
    return rows, remarks


def run_part(part: Part, folder: Path, seconds: float) -> tuple[list[list[object]], str | None]:
    command = [sys.executable, str(ROOT / "benchmarks" / part.script), part.name, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        told, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        told, errors = process.communicate()
        errors += f"\nstopped after {seconds / 60:.0f} minutes"
    found = [json.loads(line) for line in told.splitlines() if line.startswith("[")]
    return found, f"{part.name}: {errors.strip().splitlines()[-1][:300]}" if process.returncode else None


def tell(row: Sequence[object]) -> None:
    print(json.dumps([str(cell) for cell in row], ensure_ascii=False), flush=True)


def clock() -> float:
    """Seconds, once the device has done all that was asked of it."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds_of(act: Callable[[], object], rounds: int, warm_up: int = 2) -> float:
    """Median."""
    taken = []
    for _ in range(warm_up + rounds):
        began = clock()
        act()
        taken.append(clock() - began)
    return median(taken[warm_up:])


def make_bases(folder: Path, scale: Scale) -> None:
    """`chat/` and `voice/`, each with base/ and train.jsonl."""
    make_chat(folder / "chat", scale)
    make_voice(folder / "voice", scale)


def make_chat(folder: Path, scale: Scale) -> None:
    """A Qwen3 with the tiny tokenizer, which knows fewer words than the model, and a few chats, only for the run to have data."""
    from recipes.llm_sft import tiny

    tiny.build(folder / "base")
    shape = json.loads((folder / "base" / "config.json").read_text()) | scale.chat
    files.write_json(folder / "base" / "config.json", shape)
    files.write_bytes(folder / "base" / "model.safetensors", tiny.weights(shape, seed=0))
    chat = [{"role": "user", "content": "sort dcba"}, {"role": "assistant", "content": "abcd"}]
    files.write_jsonl(folder / "train.jsonl", ({"messages": chat} for _ in range(8)))


def make_voice(folder: Path, scale: Scale) -> None:
    """A Qwen3-TTS with the tiny tokenizer and a tiny codec, and clips of spoken sentences."""
    from benchmarks.voice_ways import frames_of, text_of

    _voice.build(folder / "base", scale.voice, words=None if scale is SMALLEST else 151936)
    lengths = [min(frames, scale.frames) for frames in frames_of(scale.clips)]
    _voice.write_clips(folder, scale.voice.codebook, [(text_of(frames), frames) for frames in lengths])
