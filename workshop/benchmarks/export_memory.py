"""Memory and time of an export, which streams and never holds more than one tensor, compared with `accelerate merge-weights`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.storage import files
from workshop.benchmarks import _table

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "tests" / "causal_lm"
WAYS = {"full": (), "LoRA, merged": ("--model.lora", "{rank: 16, alpha: 32}")}
MERGED = "full, by accelerate merge-weights"
COLUMNS = (
    "trained", "saved by ranks", "model, MiB", "largest tensor, MiB", "peak above imports, MiB", "bound, MiB", "peak / bound", "seconds",
    "its time / merge-weights'",
)  # fmt: skip
NOTE = (
    "Anonymous memory of the exporting process, looked at every 2 ms. The bound is 1.25 × the largest tensor + 256 MiB. "
    "Random weights in a Llama's shape, fp32, one step of training. Seconds of a processor, medians of {rounds}, in turns; waiting for a "
    "disk is not counted. An export reads the weights twice, once to verify their digest and once to write them, and leaves the moments "
    "unread; merge-weights reads the weights once and verifies nothing."
)
MIB = 2**20


def main() -> None:
    flags = _table.read_flags(__doc__)
    width, layers, rounds = (128, 2, 1) if flags.quick else (1024, 8, 3)
    with tempfile.TemporaryDirectory() as folder:
        largest, total = make(Path(folder), width, layers)
        runs = {(way, ranks): train(Path(folder), way, ranks) for way in WAYS for ranks in ((1,) if flags.quick else (1, 2))}
        ways = {**{key: partial(export, run) for key, run in runs.items()}, (MERGED, 1): partial(merge, Path(folder))}
        turns = [{key: way() for key, way in ways.items()} for _ in range(rounds)]
    found = {key: [turn[key] for turn in turns] for key in ways}
    bound, theirs = 1.25 * largest + 256 * MIB, seconds_of(found[MERGED, 1])
    sizes = [f"{total / MIB:.0f}", f"{largest / MIB:.0f}"]
    lines = [[*key, *sizes, *of_memory(each, bound), *of_time(each, theirs)] for key, each in found.items()]
    _table.publish("export_memory", flags, COLUMNS, lines, NOTE.format(rounds=rounds))


def of_memory(each: list[dict[str, Any]], bound: float) -> list[str]:
    """The largest peak, the bound, and the one over the other."""
    peak = max(one["above_imports"] for one in each)
    return [f"{peak / MIB:.0f}", f"{bound / MIB:.0f}", f"{peak / bound:.2f}"]


def of_time(each: list[dict[str, Any]], theirs: float) -> list[str]:
    return [f"{seconds_of(each):.1f}", f"{seconds_of(each) / theirs:.2f}"]


def seconds_of(each: list[dict[str, Any]]) -> float:
    return median(one["seconds"] for one in each)


def make(folder: Path, width: int, layers: int) -> tuple[int, int]:
    """A base, the same weights as accelerate keeps those of a sharded model, and text; returns bytes of the largest tensor and of all."""
    import torch
    from safetensors.torch import save_file
    from torch.distributed.checkpoint.state_dict_saver import save as save_sharded
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(vocab_size=32000, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers, num_attention_heads=8)
    model = LlamaForCausalLM(shape)
    files.write_json(folder / "base" / "config.json", shape.to_dict())
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_file(tensors, folder / "base" / "model.safetensors", metadata={"format": "pt"})
    save_sharded({"model": tensors}, checkpoint_id=folder / "sharded", no_dist=True)
    files.write_jsonl(folder / "train.jsonl", ({"text": "she counted the boats "} for _ in range(8)))
    sizes = [parameter.numel() * 4 for parameter in model.parameters()]
    return max(sizes), sum(sizes)


def train(folder: Path, way: str, ranks: int) -> Path:
    """A run of one step, saved by so many ranks."""
    run = folder / f"{way.partition(',')[0]}-{ranks}"
    given = {
        "recipe": RECIPE,
        "model.source": folder / "base",
        "data.train": folder / "train.jsonl",
        "run.dir": run,
        "train.steps": 1,
        "parallel.strategy": "fsdp",
        "log.trackers": "[]",
    }
    keys = [word for key, value in given.items() for word in (f"--{key}", value)]
    launch = [Path(sys.executable).parent / "accelerate", "launch", "--config_file", ROOT / "configs" / "cpu.yaml"]
    start(*launch, "--num_processes", ranks, ROOT / "finetune" / "train.py", *keys, *WAYS[way])
    return run


def export(run: Path) -> dict[str, Any]:
    return run_script("_export_peak.py", run, run.parent / f"{run.name}-out", RECIPE)


def merge(folder: Path) -> dict[str, Any]:
    return run_script("_merge_peak.py", folder / "sharded", folder / "merged")


def run_script(script: str, source: Path, target: Path, *more: object) -> dict[str, Any]:
    """Return what the script reports of its work, whose result is removed again."""
    printed = start(sys.executable, ROOT / "workshop" / "benchmarks" / script, source, target, *more)
    files.discard(target)
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    assert found["looks"] > 10, "it was over before it was looked at"
    return found


def start(*command: object) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([str(word) for word in command], env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
