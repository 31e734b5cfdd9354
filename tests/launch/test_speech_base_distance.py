"""`train.base_distance` in each speech recipe on 2 ranks: exactly 0 in the first step, then not, and as on one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.config import resolve
from overtone.finetune.distributed import process_group
from overtone.finetune.recipe import BASE_DISTANCE, find_recipe, load_recipe
from overtone.finetune.training.run import train
from overtone.recipes.csm.model import tiny_checkpoint as tiny_csm_checkpoint
from overtone.recipes.voice_clone.model import tiny_checkpoint as tiny_qwen_checkpoint
from tests.launch.forked_ranks import run_ranks
from tests.launch.launching import series, voice_rows
from tests.recipes.codec_lm import tiny_models
from tests.recipes.csm.tiny_csm import make_rows, write_rows

STEPS = 3
TERMS = {"voice_clone": "main", "csm": "backbone", "codec_lm": "nll"}
"""Recipe → the term with the same targets."""
KINDS: dict[str, dict[str, str]] = {"full": {"train.lr": "1e-3"}, "lora": {"model.lora.rank": "4", "train.lr": "2e-2"}}


def write_inputs(folder: Path, recipe: str) -> dict[str, Any]:
    """Base and rows of a recipe, as keys of its config."""
    folder.mkdir()
    speakers = ["Ann", "Bob"]
    if recipe == "csm":
        return {
            "model.source": tiny_csm_checkpoint.build(folder / "tiny"),
            "data.train": write_rows(folder / "a.jsonl", make_rows(speakers, frames=(9, 20))),
        }
    if recipe == "codec_lm":
        rows = tiny_models.write_rows(folder / "train.jsonl", tiny_models.make_rows(tuple(speakers), (5, 17)))
        return {
            "model.source": tiny_models.write_base(folder / "base"),
            "options.codec": tiny_models.write_codec(folder / "codec"),
            "data.train": rows,
        }
    voice_rows(folder, speakers, frames=(9, 20))
    return {"model.source": tiny_qwen_checkpoint.build(folder / "nano"), "data.train": folder / "train.jsonl"}


def train_kinds(recipe: str, inputs: dict[str, str], folder: str) -> None:
    """With adapters and without, on this rank."""
    joined, loaded = process_group.join((), Path(folder)), load_recipe(find_recipe(recipe))
    for kind, changes in KINDS.items():
        keys = {
            **{"run.dir": f"{folder}/{joined.size}-{kind}", "train.steps": STEPS, "train.precision": "fp32", "train.warmup": "0"},
            **{"train.global_batch_tokens": 10**6, "train.micro_tokens": 400, "train.base_distance": 0.5, "log.trackers": "[]"},
            **{"parallel.strategy": "fsdp" if joined.size > 1 else "ddp", "train.schedule": "constant"},
            **changes,
            **inputs,
        }
        train(joined, resolve(recipe, loaded.Options, [], [(key, str(value)) for key, value in keys.items()]), loaded)
    process_group.leave()


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("recipe", TERMS)
def test_two_ranks_log_the_distance_of_one_which_begins_at_zero(tmp_path: Path, recipe: str) -> None:
    inputs = {key: str(value) for key, value in write_inputs(tmp_path / "inputs", recipe).items()}
    run_ranks(train_kinds, [(size, (recipe, inputs, str(tmp_path))) for size in (1, 2)], [recipe], tmp_path / "witness")
    for kind in KINDS:
        alone, together = (series(tmp_path / f"{size}-{kind}") for size in (1, 2))
        assert len(alone) == len(together) == STEPS
        assert alone[0][BASE_DISTANCE] == together[0][BASE_DISTANCE] == 0, kind
        assert together[-1][BASE_DISTANCE] > 1e-4, kind
        for one, other in zip(together, alone, strict=True):
            for key in ("loss", BASE_DISTANCE, TERMS[recipe]):
                assert one[key] == pytest.approx(other[key], abs=2e-5), (kind, key)
