"""The loss of each validation file is the same number on 1, 2 and 4 processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.config import resolve
from overtone.finetune.distributed import process_group
from overtone.finetune.recipe import find_recipe, load_recipe
from overtone.finetune.training.run import train
from tests.finetune import tiny
from tests.launch.forked_ranks import run_ranks
from tests.launch.launching import series

WORLDS = (1, 2, 4)


def train_one(overrides: list[tuple[str, str]]) -> None:
    """One rank of a run, in a process of its own."""
    recipe = load_recipe(find_recipe(str(tiny.FOLDER)))
    config = resolve(str(tiny.FOLDER), recipe.Options, [tiny.FOLDER / "config.yaml"], overrides)
    with_ranks = process_group.join((), config.run.dir)
    assert train(with_ranks, config, recipe) == "finished"
    process_group.leave()


@pytest.mark.slow
@pytest.mark.ci
def test_each_file_has_the_same_loss_on_1_2_and_4_ranks(tmp_path: Path) -> None:
    tiny.config_in(tmp_path)
    rows = {"long": tiny.texts(9, seed=5), "short": tiny.texts(3, longest=8, seed=6), "one": tiny.texts(1, seed=7)}
    files = [str(tiny.write_rows(tmp_path / f"{name}.jsonl", own)) for name, own in rows.items()]
    groups: list[tuple[int, tuple[Any, ...]]] = []
    for size in WORLDS:
        given = {
            **{"model.source": tmp_path / "base", "data.train": tmp_path / "train.jsonl", "run.dir": tmp_path / f"run-{size}"},
            **{"data.val": f"[{', '.join(files)}]", "eval.every": 1, "train.steps": 2, "train.micro_tokens": 80},
            **{"parallel.strategy": "fsdp" if size > 1 else "ddp", "checkpoint.best_by": "short/loss", "options.dropout": 0.0},
        }
        groups.append((size, ([(key, str(value)) for key, value in given.items()],)))
    run_ranks(train_one, groups, [str(tiny.FOLDER)], tmp_path / "witness")
    whole, *others = (series(tmp_path / f"run-{size}", "evaluation") for size in WORLDS)
    names = {f"val/{name}/loss" for name in rows} | {"val/loss"}
    assert len(whole) == 2 and names <= whole[0].keys()
    for events in others:
        for one, other in zip(whole, events, strict=True):
            assert {name: one[name] for name in names} == {name: pytest.approx(other[name], abs=5e-6) for name in names}
