"""Small labelled images that a tiny ViT learns in a few steps, and runs on them in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from overtone.finetune.config import Config, resolve
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.training.run import train
from overtone.recipes.image_classification.model import tiny_checkpoint
from overtone.recipes.image_classification.options import Options
from overtone.recipes.image_classification.recipe import RECIPE
from tests.finetune.tiny import let_go

FOLDER = Path(__file__).parents[3] / "recipes" / "image_classification"
LABELS = {"blue": (40, 60, 200), "green": (30, 180, 70), "red": (210, 40, 50)}
LORA = (("model.lora", "{rank: 4, alpha: 8}"), ("train.lr", "2e-2"))


def draw_image(label: str, seed: int, size: tuple[int, int] = (24, 20)) -> Image.Image:
    """An image of a colour, with noise and a dark square in a corner. `size`: width and height."""
    chance = np.random.default_rng(seed)
    pixels = chance.integers(-30, 30, (size[1], size[0], 3)) + np.array(LABELS[label])
    pixels[:5, : 5 + seed % 5] -= 60
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write_images(folder: Path, count: int = 4, name: str = "train", first: int = 0) -> Path:
    """`count` images of each label, of different sizes, and the JSONL file that names them."""
    rows = []
    for label in LABELS:
        for number in range(first, first + count):
            path = folder / "images" / f"{label}-{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            draw_image(label, number, (20 + number % 3 * 9, 18 + number % 4 * 7)).save(path)
            rows.append({"image": path.relative_to(folder).as_posix(), "label": label})
    return write_rows(folder / f"{name}.jsonl", rows)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_config(folder: Path, *overrides: tuple[str, str]) -> Config[Options]:
    """A run in `folder`/run on a tiny base and images in `folder`, which are made if they are missing."""
    if not (folder / "base").is_dir():
        tiny_checkpoint.build(folder / "base")
    if not (folder / "train.jsonl").is_file():
        write_images(folder)
        write_images(folder, 2, "val", first=20)
    places = {"model.source": "base", "data.train": "train.jsonl", "data.val": "val.jsonl", "run.dir": "run"}
    sizes = {"train.global_batch_tokens": "12", "train.micro_tokens": "6", "train.steps": "4", "checkpoint.every": "2", "eval.every": "2"}
    rest = {"train.precision": "fp32", "train.lr": "5e-3", "log.trackers": "[]", "train.warmup": "0", "train.schedule": "constant"}
    own = [*((key, str(folder / name)) for key, name in places.items()), *sizes.items(), *rest.items(), *overrides]
    return resolve("image_classification", Options, [FOLDER / "config.yaml"], own)


def train_here(folder: Path, *overrides: tuple[str, str]) -> Path:
    """Train in this process; returns the run's folder."""
    config = make_config(folder, *overrides)
    let_go(config.run.dir)
    train(join((), folder), config, RECIPE)
    leave()
    return config.run.dir
