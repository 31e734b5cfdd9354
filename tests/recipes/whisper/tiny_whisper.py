"""A tiny Whisper, tones with texts that it can learn, and runs on them in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from overtone.data_prep.audio.waveform import Samples
from overtone.finetune.config import Config, resolve
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.training.run import train
from overtone.recipes.whisper.model.sequence_layout import RecognizerProcessor
from overtone.recipes.whisper.options import Options
from overtone.recipes.whisper.recipe import RECIPE
from tests.finetune.tiny import let_go

FOLDER = Path(__file__).parents[3] / "recipes" / "whisper"
TEXTS = ("Good day.", "Please hold the line, Asterisk.", "One.", "Press two.")
PROCESSOR = RecognizerProcessor(multilingual=True, languages=99, mels=80, positions=448, options=Options())
ENGLISH = RecognizerProcessor(multilingual=False, languages=0, mels=80, positions=448, options=Options())


def make_tone(number: int, seconds: float = 0.5, rate: int = 16_000) -> Samples:
    """[n] a tone in noise, another one for each number, without a DC offset."""
    time = np.arange(round(seconds * rate)) / rate
    wave = 0.2 * np.sin(2 * np.pi * (220 + 90 * number) * time) + 0.01 * np.random.default_rng(number).standard_normal(len(time))
    return (wave - wave.mean()).astype(np.float32)


def write_tone(path: Path, number: int = 0, seconds: float = 0.5, rate: int = 16_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, make_tone(number, seconds, rate), rate, subtype="FLOAT" if path.suffix == ".wav" else None)
    return path


def write_clips(folder: Path, name: str = "train", **keys: object) -> Path:
    """A clip for each of `TEXTS`, and the JSONL file that names them. `keys`: more keys of each row."""
    rows = []
    for number, text in enumerate(TEXTS):
        path = write_tone(folder / "clips" / f"{number}.flac", number, 0.4 + 0.2 * number)
        rows.append({"audio": path.relative_to(folder).as_posix(), "text": text, "language": "english", **keys})
    return write_rows(folder / f"{name}.jsonl", rows)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_config(folder: Path, base: Path, *overrides: tuple[str, str]) -> Config[Options]:
    """A run in `folder`/run on `base` and clips in `folder`, which are made if they are missing."""
    if not (folder / "train.jsonl").is_file():
        write_clips(folder)
        write_clips(folder, "val")
    places = {"data.train": "train.jsonl", "data.val": "val.jsonl", "run.dir": "run"}
    sizes = {"train.global_batch_tokens": "4", "train.micro_tokens": "4", "train.steps": "2", "checkpoint.every": "2", "eval.every": "2"}
    rest = {"train.precision": "fp32", "train.lr": "2e-3", "log.trackers": "[]", "train.warmup": "0", "train.schedule": "constant"}
    plain = {"options.time_masks": "0", "options.mel_masks": "0", "eval.at_start": "false", "model.source": str(base)}
    own = [*((key, str(folder / name)) for key, name in places.items()), *{**sizes, **rest, **plain}.items(), *overrides]
    return resolve("whisper", Options, [FOLDER / "config.yaml"], own)


def train_here(folder: Path, base: Path, *overrides: tuple[str, str]) -> Path:
    """Train in this process; returns the run's folder."""
    config = make_config(folder, base, *overrides)
    let_go(config.run.dir)
    train(join((), folder), config, RECIPE)
    leave()
    return config.run.dir
