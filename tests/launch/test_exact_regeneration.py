"""Train, export, and let the stock package speak in a fresh process: every code of every clip comes back.

CI's case trains on forked ranks, the others through the launcher. `tests/recipes/voice_clone/test_regeneration.py` is the quick twin.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from overtone.finetune import train
from overtone.finetune.exporting import export
from overtone.recipes.voice_clone.model import tiny_checkpoint
from tests.launch.forked_ranks import run_ranks
from tests.launch.launching import ALONE, ROOT, launch, series, voice_rows

WITH_HEADS = r".*(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj|codec_head|lm_head\.\d+)"
"""The heads of a random base cannot be confident about anything, so here LoRA must move them too."""
QUICK = ["--train.steps", "220", "--train.lr", "5e-3", "--parallel.strategy", "fsdp"]
FULL = ["--train.steps", "250", "--train.lr", "5e-3"]
LORA = ["--train.steps", "400", "--train.lr", "1e-2", "--model.lora.rank", "16", "--model.lora.targets", WITH_HEADS]
CASES = [
    pytest.param(["Ann", "Bob"], QUICK, None, 2, id="two-speakers-full-forked", marks=pytest.mark.ci),
    pytest.param(["Ann", "Bob"], FULL, "fsdp2", 2, id="two-speakers-full-fsdp"),
    pytest.param(["Ann"], LORA, "ddp", 2, id="one-speaker-lora-ddp"),
    pytest.param(["Ann"], FULL, "ddp", 2, id="one-speaker-full-ddp"),
    pytest.param(["Ann", "Bob"], LORA, "fsdp2", 2, id="two-speakers-lora-fsdp"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("speakers", "how", "config", "processes"), CASES)
def test_the_stock_package_regenerates_what_was_trained(
    speakers: list[str], how: list[str], config: str | None, processes: int, tmp_path: Path
) -> None:
    base = tiny_checkpoint.build(tmp_path / "nano")
    rows = voice_rows(tmp_path, speakers)
    data = ["--model.source", base, "--data.train", tmp_path / "train.jsonl", "--run.dir", tmp_path / "run", "--run.seed", 1]
    rest = ["--train.final_lr", "0.02", "--checkpoint.every", 1000, "--train.global_batch_tokens", 1000, "--train.weight_decay", 0]
    overlay = ["--config", "recipes/voice_clone/debug.yaml"]
    words = ["--recipe", "voice_clone", *overlay, *map(str, data), *map(str, rest), *how]
    if config is None:
        run_ranks(train_rank, [(processes, (words,))], ["voice_clone"], tmp_path / "witness")
    else:
        launch(config, processes, "finetune/train.py", *words)
    assert series(tmp_path / "run")[-1]["loss"] < 0.05
    requests, expected = [], []
    for form in ("custom_voice", "base"):
        folder = export.export(tmp_path / "run", tmp_path / form, form)
        for row in rows:
            requests.append({"folder": str(folder), "speaker": row["speaker"].lower(), "text": row["text"], "language": row["language"]})
            expected.append(row["audio_codes"])
    assert speak(requests, tmp_path) == expected


def train_rank(arguments: list[str]) -> None:
    assert train.main(arguments) == 0


def speak(requests: list[dict[str, str]], folder: Path) -> list[list[list[int]]]:
    asked = folder / "requests.json"
    asked.write_text(json.dumps(requests))
    script = ROOT / "tests" / "launch" / "stock_generation.py"
    done = subprocess.run([sys.executable, script, asked], env=ALONE, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
