"""Dropped and truncated rows are counted before the first step, and each data file is indexed once for all ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from overtone.finetune.data import dataset_opening, row_measurement
from overtone.finetune.data.batching import Loader, MicroBatch
from overtone.finetune.data.cached_samples import Rows, open_rows
from overtone.finetune.data.index_building import build_index
from overtone.finetune.distributed.process_group import World, join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_logger import Events
from overtone.finetune.recipe import Batch, Sample
from overtone.finetune.training import setup
from tests.finetune import fork_server, tiny
from tests.finetune.data.test_row_measurement import CUTTING

TEXTS = ["a" * 30, "b" * 9, "c" * 31, "d" * 50, "e" * 12]


def test_dropped_rows_are_counted_with_their_lines_and_never_trained_on(
    tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write_rows(tmp_path / "train.jsonl", TEXTS)
    config = tiny.config_in(tmp_path, ("data.sequence_length", "30"), ("data.too_long", "drop"))
    training, progress = tiny.built(world, config)
    assert training.rows.lengths.tolist() == [30, 9, 12]
    assert training.rows.left_out == {"longer than 30 positions": [3, 4]}
    events = Events(tmp_path / "run", world.accelerator, training.total, 0, {})
    setup.report_start(training, progress, events)
    events.close()
    assert "dropped 2 of 5 rows, longer than 30 positions (lines 3, 4)" in capsys.readouterr().out


def test_truncated_rows_are_counted_and_loaded_truncated(tmp_path: Path) -> None:
    path = tiny.write_rows(tmp_path / "train.jsonl", TEXTS)
    config = tiny.config_in(tmp_path, ("data.sequence_length", "30"), ("data.too_long", "truncate"))
    rows = opened(path, tmp_path / "cache", config)
    assert rows.lengths.tolist() == [30, 9, 30, 30, 12] and rows.cut == 2
    assert dataset_opening.describe_dropped(rows) == [f"{path}: truncated 2 of 5 rows"]
    loader = Loader(rows, CUTTING, 0, 1)
    turn = loader.turns((MicroBatch((3, 1), 39, 0),))[0]
    loader.close()
    assert turn.batch.tensors["ids"].shape == (2, 30)


def test_what_of_rows_is_not_used_is_counted(tmp_path: Path) -> None:
    path = tiny.write_rows(tmp_path / "train.jsonl", TEXTS)
    recipe = replace(CUTTING, list_unused=lambda row, _: ["key a", "key b"] if len(row["text"]) > 30 else ["key b"])
    measure = partial(row_measurement.encode_row, row_measurement.LengthLimit(100, "", "error"), tmp_path, recipe, None)
    built = build_index(path, tmp_path / "cache", "key", measure)
    assert dataset_opening.describe_dropped(open_rows(path, tmp_path / "cache", built)) == [
        f"{path}: not used: key b (5 rows), key a (2 rows)"
    ]


def test_remote_data_is_downloaded_to_the_cache_and_trained_on(tmp_path: Path, world: World) -> None:
    url = f"file://{tiny.write_rows(tmp_path / 'elsewhere' / 'rows.jsonl', TEXTS)}"
    config = tiny.config_in(tmp_path, ("data.train", url))
    local = dataset_opening.download_data(config.data, tmp_path / "run" / "cache" / "elsewhere", world)
    assert config.data.train == url and local.val is None
    assert isinstance(local.train, Path) and local.train.is_relative_to(tmp_path / "run" / "cache")
    training, _ = tiny.built(world, config)
    assert training.rows.path == local.train and len(training.rows) == len(TEXTS) and training.config.data.train == url


def opened(path: Path, cache: Path, config) -> Rows:  # type: ignore[no-untyped-def]
    from overtone.finetune.data.cached_samples import open_rows
    from overtone.finetune.data.index_building import build_index

    build_index(
        path,
        cache,
        "key",
        partial(row_measurement.encode_row, row_measurement.LengthLimit.of(config.data, config.train), path.parent, CUTTING, None),
    )
    return open_rows(path, cache)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("data.packing", "true", "does not support packing"),
        ("data.too_long", "truncate", "does not support truncation"),
        ("data.sequence_length", "101", "larger than a micro-batch"),
    ],
)
def test_settings_that_the_recipe_does_not_support_are_refused(tmp_path: Path, key: str, value: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        chosen = tiny.config_in(tmp_path, (key, value))
        dataset_opening.check_batching(chosen.data, chosen.train, chosen.recipe, tiny.RECIPE)
    chosen = tiny.config_in(tmp_path)
    dataset_opening.check_batching(chosen.data, chosen.train, chosen.recipe, tiny.RECIPE)


def test_packed_micro_batches_go_through_pack(tmp_path: Path) -> None:
    path = tiny.write_rows(tmp_path / "train.jsonl", TEXTS)
    packing = replace(CUTTING, pack=lambda samples: Batch({"ids": torch.cat([sample["ids"] for sample in samples])}, {"next": 1}))
    rows = opened(path, tmp_path / "cache", tiny.config_in(tmp_path))
    loader = Loader(rows, packing, 0, 2)
    turns = loader.turns((MicroBatch((0, 1), 39, 0, packed=True),))
    loader.close()
    assert [turn.batch.tensors["ids"].shape for turn in turns] == [(39,)]


def samples_of_rank(folder: Path) -> tuple[int, str, list[bytes]]:
    """On one of several ranks: the number of rows that it read, the digest of the rows, and the last bytes of each sample."""
    config, world = tiny.config_in(folder), join((), folder)
    loaded, read = tiny.RECIPE.load(config), list[Any]()
    recipe = replace(tiny.RECIPE, read=lambda row, *others: read.append(row) or tiny.RECIPE.read(row, *others))  # type: ignore[func-returns-value]  # append, then read
    rows = tiny.open_rows(folder / "train.jsonl", config.run.dir / "cache", "key", recipe, loaded, config, world)
    leave()
    return len(read), rows.digest, [bytes(rows.sample(row))[-4:] for row in range(len(rows))]


def test_one_of_several_ranks_reads_the_rows_and_all_get_the_samples(tmp_path: Path) -> None:
    tiny.config_in(tmp_path)
    (first, *found), (second, *same) = fork_server.run_ranks(2, samples_of_rank, tmp_path)
    assert sorted([first, second]) == [0, 20] and found == same


def test_another_length_limit_indexes_the_file_again(tmp_path: Path, world: World) -> None:
    path, lengths = tiny.write_rows(tmp_path / "train.jsonl", TEXTS), []
    for limit in ("30", "40"):
        config = tiny.config_in(tmp_path, ("data.sequence_length", limit), ("data.too_long", "drop"))
        rows = tiny.open_rows(path, tmp_path / "cache", "key", tiny.RECIPE, tiny.RECIPE.load(config), config, world)
        lengths.append(rows.lengths.tolist())
    assert lengths == [[30, 9, 12], [30, 9, 31, 12]]


def read_length(row: dict[str, Any], _: object, folder: Path) -> Sample:
    """As many positions as the file that the row names has bytes."""
    return {"ids": torch.zeros((folder / row["text"]).stat().st_size, dtype=torch.int64)}


WITH_FILES = replace(tiny.RECIPE, read=read_length, files=lambda row: (row["text"],))


def write_named_files(folder: Path, *sizes: int) -> Path:
    for number, size in enumerate(sizes):
        (folder / f"{number}.bin").write_bytes(bytes(size))
    return tiny.write_rows(folder / "train.jsonl", [f"{number}.bin" for number in range(len(sizes))])


def test_files_that_rows_name_are_found_beside_the_data_file_and_read_again_if_one_changes(
    tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, config = write_named_files(tmp_path, 4, 5), tiny.config_in(tmp_path)

    def lengths(place: Path = path) -> tuple[list[int], str]:
        rows = tiny.open_rows(place, tmp_path / "cache", "key", WITH_FILES, tiny.RECIPE.load(config), config, world)
        return rows.lengths.tolist(), capsys.readouterr().err

    monkeypatch.chdir(tmp_path)
    assert lengths() == ([4, 5], "") and lengths(Path("train.jsonl")) == ([4, 5], "")
    (tmp_path / "1.bin").write_bytes(bytes(7))
    assert lengths() == ([4, 7], f"indexing {path} again: the file '1.bin', which a row names, has changed\n")
    (moved := tmp_path / "moved").mkdir()
    path.rename(moved / "train.jsonl")
    with pytest.raises(UserError, match=r"moved/train\.jsonl: all 2 rows: '0\.bin' cannot be read in .*moved \(No such file"):
        lengths(moved / "train.jsonl")


def test_two_links_to_one_data_file_name_the_files_beside_each(tmp_path: Path, world: World) -> None:
    unnamed = replace(tiny.RECIPE, read=read_length)  # so that only the folder distinguishes the two
    path, config, found = write_named_files(tmp_path, 4, 5), tiny.config_in(tmp_path), []
    for name, size in (("a", 6), ("b", 8)):
        (tmp_path / name).mkdir()
        write_named_files(tmp_path / name, size, size).unlink()
        (tmp_path / name / "train.jsonl").symlink_to(path)
        place = tmp_path / name / "train.jsonl"
        rows = tiny.open_rows(place, tmp_path / "cache", "key", unnamed, tiny.RECIPE.load(config), config, world)
        found.append(rows.lengths.tolist())
    assert found == [[6, 6], [8, 8]]
