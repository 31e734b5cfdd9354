"""Which earlier rows a sample begins with, that several processes find the same ones, and what happens to rows that have no place."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from overtone.finetune.config import Config
from overtone.finetune.data import cached_samples, index_building, row_measurement
from overtone.finetune.data.context_rows import EarlierRows, find_earlier_rows, read_with_context
from overtone.finetune.data.index_workers import IndexWorkers
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.planning.data_preview import make_reader
from overtone.finetune.recipe import ContextLimits, ContextRows, Recipe, RowPlace, Sample
from tests.finetune import tiny
from tests.reliability import victims

LIMIT = row_measurement.LengthLimit(10**6, "train.micro_tokens", "error")
assert victims.SERVER  # its fork server has torch imported


def locate(row: dict[str, Any]) -> RowPlace:
    if "series" not in row:
        raise UserError("the row has no series")
    return RowPlace(row["series"], row["at"], row["at"] + row.get("lasts", 1))


def join(samples: list[Sample], _: Any) -> Sample:
    return {"ids": torch.cat([sample["ids"] for sample in samples])}


def make_recipe(rows: int = 2, duration: float = 100.0) -> Recipe:
    return replace(tiny.RECIPE, context=ContextRows(locate, lambda _: ContextLimits(rows, duration), join))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_series(count: int, name: str = "one", **more: Any) -> list[dict[str, Any]]:
    return [{"text": f"{name} {number} ", "series": name, "at": number, **more} for number in range(count)]


def find(path: Path, recipe: Recipe) -> EarlierRows:
    found = find_earlier_rows(path, recipe, tiny.RECIPE.Options())
    assert found is not None
    return found


def read_texts(path: Path, recipe: Recipe) -> list[str]:
    """The text of each sample."""
    assert recipe.context is not None
    earlier, rows = find(path, recipe), [json.loads(line) for line in path.read_text().splitlines()]
    samples = [read_with_context(recipe, None, row, path.parent, earlier) for row in rows]
    return [bytes(sample["ids"].tolist()).decode() for sample in samples]


def test_each_number_of_earlier_rows_is_equally_frequent(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", make_series(6))
    assert read_texts(path, make_recipe(rows=2)) == [
        "one 0 ",
        "one 0 one 1 ",
        "one 0 one 1 one 2 ",
        "one 3 ",
        "one 3 one 4 ",
        "one 3 one 4 one 5 ",
    ]


def test_the_order_in_the_file_does_not_matter_and_series_are_separate(tmp_path: Path) -> None:
    rows = [*make_series(9), *make_series(5, "two")]
    mixed = [rows[place] for place in np.random.default_rng(0).permutation(len(rows))]
    plain, found = (
        read_texts(write(tmp_path / "a.jsonl", rows), make_recipe(3)),
        read_texts(write(tmp_path / "b.jsonl", mixed), make_recipe(3)),
    )
    assert sorted(plain) == sorted(found) and not any("one" in text and "two" in text for text in plain)


def test_a_row_that_has_not_ended_is_no_context(tmp_path: Path) -> None:
    """Of two people who speak at the same time, each would hear what it is to say."""
    rows = [{"text": text, "series": "s", "at": at, "lasts": lasts} for text, at, lasts in (("aaa", 0, 5), ("bbb", 2, 1), ("ccc", 4, 1))]
    rows.append({"text": "ddd", "series": "s", "at": 5})
    assert read_texts(write(tmp_path / "rows.jsonl", rows), make_recipe(9)) == ["aaa", "bbb", "bbbccc", "bbbaaacccddd"]


def test_the_oldest_rows_are_left_out_beyond_the_duration(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", make_series(4))
    assert read_texts(path, make_recipe(3, duration=2.0))[3] == "one 1 one 2 one 3 "
    assert read_texts(path, make_recipe(3, duration=0.5)) == [f"one {number} " for number in range(4)]


@pytest.mark.parametrize("recipe", [make_recipe(rows=0), tiny.RECIPE], ids=["no-rows", "no-context"])
def test_without_context_no_row_is_located(recipe: Recipe, tmp_path: Path) -> None:
    assert find_earlier_rows(write(tmp_path / "rows.jsonl", [{"text": "no series"}]), recipe, tiny.RECIPE.Options()) is None


def test_invalid_rows_are_named_with_their_lines_and_so_is_invalid_context(tmp_path: Path) -> None:
    rows = [{"text": "", "series": "s", "at": 0}, {"text": "good", "series": "s", "at": 1}, {"text": "no series"}]
    path, recipe = write(tmp_path / "rows.jsonl", rows), make_recipe(3)
    measure = partial(row_measurement.encode_row, LIMIT, tmp_path, recipe, None, earlier=find(path, recipe))
    with pytest.raises(UserError) as error:
        index_building.build_index(path, tmp_path / "cache", "key", measure)
    lines = str(error.value).splitlines()
    assert f"{path}:1: text must hold" in lines[1] and f"{path}:3: the row has no series" in lines[3]
    assert f"{path}:2: its context, the row of line 1, cannot be used: text must hold" in lines[2]


def read_in_context(recipe: Recipe, _: Path, row: dict[str, Any], earlier: EarlierRows) -> index_building.Measured:
    """In any process; the recipe of a worker is loaded from its folder, without this file's context."""
    recipe = replace(recipe, context=ContextRows(locate, lambda _: earlier.limits, join))
    return row_measurement.encode_row(LIMIT, earlier.path.parent, recipe, None, row, earlier)


def test_several_processes_make_the_same_samples_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_building, "SCANNED_BYTES", 150)
    path, recipe = write(tmp_path / "rows.jsonl", [*make_series(40), *make_series(20, "two")]), make_recipe(3)
    measure = partial(read_in_context, earlier=find(path, recipe))
    workers = IndexWorkers(path, tiny.FOLDER, tmp_path, measure)
    found = []
    for name, scan_all in (("one", None), ("two", partial(workers.scan_all, 2))):
        index_building.build_index(path, tmp_path / name, "key", partial(measure, tiny.RECIPE, tmp_path), scan_all)
        place = cached_samples.index_path(path, tmp_path / name)
        found.append((place.read_bytes(), cached_samples.samples_path(place).read_bytes()))
    assert found[0] == found[1]
    lengths = cached_samples.open_rows(path, tmp_path / "one").lengths
    assert lengths[:5].tolist() == [6, 12, 18, 24, 6]


def test_a_plan_counts_the_context(tmp_path: Path) -> None:
    config: Config = tiny.config_in(tmp_path)
    path = write(tmp_path / "train.jsonl", make_series(6))
    assert make_reader(config, make_recipe(2), None).preview(path).positions == 2 * (6 + 12 + 18)
    assert make_reader(config, tiny.RECIPE, None).preview(path).positions == 6 * 6


def test_a_run_trains_on_samples_with_context(tmp_path: Path, world: World) -> None:
    """As every start of a training opens its data, from which a resumed run gets the same index."""
    config, recipe = tiny.config_in(tmp_path), make_recipe(2)
    path = write(tmp_path / "train.jsonl", make_series(6))
    for _ in range(2):
        rows = tiny.open_rows(path, tmp_path / "cache", "key", recipe, recipe.load(config), config, world)
        assert rows.lengths.tolist() == [6, 12, 18, 6, 12, 18]
