"""Memory that an export takes, beside the size of the model: it streams, and never holds more than a tensor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _table
from finetune import files

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "tests" / "causal_lm"
WAYS = {"full": (), "LoRA, merged": ("--model.lora", "{rank: 16, alpha: 32}")}
COLUMNS = ("trained", "saved by ranks", "model, MiB", "largest tensor, MiB", "peak above imports, MiB", "bound, MiB", "peak / bound")
NOTE = (
    "Anonymous memory of the exporting process, looked at every 2 ms. The bound is 1.25 × the largest tensor + 256 MiB. "
    "Random weights in a Llama's shape, fp32, one step of training."
)
MIB = 2**20


def main() -> None:
    flags = _table.read_flags(__doc__)
    width, layers = (128, 2) if flags.quick else (1024, 8)
    with tempfile.TemporaryDirectory() as folder:
        largest, total = make(Path(folder), width, layers)
        found = [(way, ranks, peak(Path(folder), way, ranks)) for way in WAYS for ranks in ((1,) if flags.quick else (1, 2))]
    bound = 1.25 * largest + 256 * MIB
    lines = [
        [way, ranks, round(total / MIB), round(largest / MIB), f"{found / MIB:.0f}", round(bound / MIB), f"{found / bound:.2f}"]
        for way, ranks, found in found
    ]
    _table.publish("export_memory", flags, COLUMNS, lines, NOTE)


def make(folder: Path, width: int, layers: int) -> tuple[int, int]:
    """A base and some text; returns bytes of the largest tensor and of all."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(vocab_size=32000, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers, num_attention_heads=8)
    model = LlamaForCausalLM(shape)
    files.write_json(folder / "base" / "config.json", shape.to_dict())
    save_file(dict(model.named_parameters()), folder / "base" / "model.safetensors", metadata={"format": "pt"})
    files.write_jsonl(folder / "train.jsonl", ({"text": "she counted the boats "} for _ in range(8)))
    sizes = [parameter.numel() * 4 for parameter in model.parameters()]
    return max(sizes), sum(sizes)


def peak(folder: Path, way: str, ranks: int) -> int:
    """Bytes above the imports while a run of one step, saved by so many ranks, is exported."""
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
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launch = [Path(sys.executable).parent / "accelerate", "launch", "--config_file", ROOT / "configs" / "cpu.yaml"]
    start(*launch, "--num_processes", ranks, ROOT / "finetune" / "train.py", *keys, *WAYS[way], environment=environment)
    told = start(sys.executable, ROOT / "benchmarks" / "_export_peak.py", run, folder / f"{run.name}-out", environment=environment)
    found: dict[str, Any] = json.loads(told.splitlines()[-1])
    assert found["looks"] > 10, "the export was over before it was looked at"
    return int(found["above_imports"])


def start(*command: object, environment: dict[str, str]) -> str:
    done = subprocess.run([str(word) for word in command], env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
