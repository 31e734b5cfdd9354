"""Common parts of gpu.py: models of released shapes with random weights, a clock, and the circumstances of a figure."""

from __future__ import annotations

import gc
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from overtone.finetune.storage import files
from overtone.recipes.qwen3_tts.model.config_factory import RELEASED, SMALL, ModelSize

if TYPE_CHECKING:
    import torch

    from overtone.finetune.distributed.process_group import World

ROOT = Path(__file__).resolve().parents[2]
QWEN3: dict[str, Any] = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1000000.0, "max_position_embeddings": 40960, "initializer_range": 0.02,
}  # fmt: skip
"""Shape of Qwen3-1.7B: its `config.json` on the hub."""


@dataclass(frozen=True)
class Scale:
    """Amount of work: on a GPU what the tables show, or the least that runs through every line."""

    chat: dict[str, Any]
    """Keys of the chat model's shape."""
    voice: ModelSize
    sequence: int
    """Longest chat, in positions."""
    micro: int
    """`train.micro_tokens` of chats."""
    chats: int
    clips: int
    frames: int
    """Maximum frames of a clip."""
    rounds: int
    product: int
    """Rows and columns of the matrices whose product is the ceiling."""


FULL = Scale(QWEN3, RELEASED["0.6B"], 4096, 8192, 24, 32, 125, 5, 8192)
"""Scale that fits a GPU of 80 GB by the plan's count, the other model of a comparison included."""
SMALLEST = Scale({}, SMALL["nano"], 64, 128, 4, 4, 12, 1, 64)


def has_gpu() -> bool:
    """Without importing torch where there can be none."""
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        return False
    import torch

    return torch.cuda.is_available()


def clock() -> float:
    """Seconds, after the device has finished its work."""
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


def circumstances(dry: bool) -> dict[str, str]:
    """Return what figures must have in common to stand in one table."""
    found = {"torch": f"torch {version('torch')}", "transformers": f"transformers {version('transformers')}"}
    return {"card": f"{card()}{', at the smallest sizes' if dry else ''}", **found}


def card() -> str:
    """Name, memory and driver, from the driver: a process that uses torch for this takes memory of the GPU."""
    if not has_gpu():
        return "a CPU"
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as problem:
        return f"a GPU of which nvidia-smi says nothing ({type(problem).__name__})"
    name, memory, driver = (cell.strip() for cell in done.stdout.splitlines()[0].split(","))
    return f"{name} ({memory}), driver {driver}"


def one_line(problem: BaseException) -> str:
    """Its kind and the beginning of what it says."""
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"


class Bench:
    """Owns the folder of models and runs, and the process group of one, which is joined when it is first needed."""

    def __init__(self, folder: Path, dry: bool) -> None:
        self.folder, self.dry = folder / ("smallest" if dry else "full"), dry
        self.scale = SMALLEST if dry else FULL
        self._joined: World | None = None

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def joined(self) -> World:
        from overtone.finetune.distributed import process_group

        if self._joined is None:
            self._joined = process_group.join((), self.folder)
        return self._joined

    def leave(self) -> None:
        from overtone.finetune.distributed import process_group

        if self._joined is not None:
            process_group.leave()

    def fresh(self, name: str) -> Path:
        """A folder that does not exist yet, for a run; one of this name from an earlier process is gone."""
        path = self.folder / "runs" / re.sub(r"\W+", "-", name)
        shutil.rmtree(path, ignore_errors=True)
        return path

    def clear(self) -> None:
        """Give memory back between two figures."""
        gc.collect()
        if "torch" not in sys.modules:
            return
        import torch

        torch._dynamo.reset()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def make(target: Path, build: Callable[[Path], None]) -> Path:
    """A folder that `build` fills, unless it is there. It has its name once it is whole."""
    if not target.exists():
        beside = target.with_name(f"{target.name}.part")
        shutil.rmtree(beside, ignore_errors=True)
        beside.parent.mkdir(parents=True, exist_ok=True)
        build(beside)
        beside.rename(target)
    return target


def chat_base(bench: Bench) -> Path:
    """`chat/` with base/ and train.jsonl."""
    return make(bench.folder / "chat", lambda folder: make_chat(folder, bench.scale))


def voice_base(bench: Bench) -> Path:
    """`voice/` with base/ and train.jsonl."""
    return make(bench.folder / "voice", lambda folder: make_voice(folder, bench.scale))


def make_chat(folder: Path, scale: Scale) -> None:
    """A Qwen3 with the tiny tokenizer, which knows fewer words than the model, and a few chats, only for the run to have data."""
    from overtone.recipes.llm_sft.model import tiny_checkpoint

    tiny_checkpoint.build(folder / "base")
    shape = json.loads((folder / "base" / "config.json").read_text()) | scale.chat
    files.write_json(folder / "base" / "config.json", shape)
    files.write_bytes(folder / "base" / "model.safetensors", tiny_checkpoint.make_weights(shape, seed=0))
    chat = [{"role": "user", "content": "sort dcba"}, {"role": "assistant", "content": "abcd"}]
    files.write_jsonl(folder / "train.jsonl", ({"messages": chat} for _ in range(8)))


def make_voice(folder: Path, scale: Scale) -> None:
    """A Qwen3-TTS with the tiny tokenizer and a tiny codec, and clips of spoken sentences."""
    from workshop.benchmarks import _voice
    from workshop.benchmarks.voice_ways import frames_of, text_of

    build_voice(folder / "base", scale.voice, scale)
    lengths = [min(frames, scale.frames) for frames in frames_of(scale.clips)]
    _voice.write_clips(folder, scale.voice.codebook, [(text_of(frames), frames) for frames in lengths])


def speaker_base(bench: Bench, label: str, width: ModelSize) -> Path:
    """A Qwen3-TTS with one named voice, which speaks as an export does."""
    from workshop.benchmarks.generation import add_named_speaker

    def build(folder: Path) -> None:
        build_voice(folder, width, bench.scale)
        add_named_speaker(folder)

    return make(bench.folder / f"speaker-{label}", build)


def build_voice(folder: Path, width: ModelSize, scale: Scale) -> None:
    from workshop.benchmarks import _voice

    _voice.build(folder, width, words=None if scale is SMALLEST else 151936)
