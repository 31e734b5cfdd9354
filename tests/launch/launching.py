"""Real launches, and small data for them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from overtone.finetune.monitoring.run_records import read_log
from tests.byte_model.recipe import write_base

ROOT = Path(__file__).parents[2]
ALONE = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def command(config: str, processes: int, *arguments: object) -> list[str]:
    return [
        *(
            str(Path(sys.executable).parent / "accelerate"),
            "launch",
            "--config_file",
            str(ROOT / "configs" / f"{config}.yaml"),
            "--num_processes",
            str(processes),
        ),
        *map(str, arguments),
    ]


def launch(config: str, processes: int, *arguments: object, fails: bool = False) -> str:
    """Run `accelerate launch` to its end from the repository's root; returns what it printed."""
    done = subprocess.run(
        command(config, processes, *arguments), cwd=ROOT, env=ALONE, capture_output=True, text=True, timeout=280, check=False
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def byte_data(folder: Path, rows: int = 60) -> list[object]:
    """A byte-model base and ragged text; returns the arguments that train on them."""
    write_base(folder / "base")
    chance = random.Random(0)
    texts = ["".join(chance.choice("abcde ") for _ in range(chance.randint(5, 60))) for _ in range(rows)]
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    recipe = ROOT / "tests" / "byte_model"
    return ["finetune/train.py", "--recipe", recipe, "--model.source", folder / "base", "--data.train", folder / "train.jsonl"]


def voice_rows(folder: Path, speakers: list[str], frames: tuple[int, ...] = (21, 34)) -> list[dict[str, Any]]:
    """Each speaker says two texts, each time with other random codes and another length, so that both conditions matter."""
    chance = np.random.RandomState(0)
    rows = []
    for number, speaker in enumerate(speakers):
        time = np.arange(24000) / 24000
        pitch = 110 * (number + 1)
        soundfile.write(folder / f"{speaker}.wav", 0.2 * np.sign(np.sin(2 * np.pi * pitch * time)), 24000)
        for text, count in zip(("She counted the boats.", "It is never late, is it?"), frames, strict=True):
            codes = chance.randint(0, 64, (count + 3 * number, 16)).tolist()
            rows.append({"audio": f"{speaker}.wav", "text": text, "speaker": speaker, "language": "english", "audio_codes": codes})
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def series(run: Path, kind: str = "step") -> list[dict[str, Any]]:
    """Events of one kind, by step."""
    return sorted((event for event in read_log(run / "log.jsonl") if event["event"] == kind), key=lambda event: event["step"])
