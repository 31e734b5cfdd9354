"""Several processes make the same index and cache as one; a row that kills its process is named."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from overtone.finetune.data import cached_samples, index_building, index_workers, row_measurement
from overtone.finetune.data.index_building import Measured
from overtone.finetune.data.index_workers import IndexWorkers
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Recipe, load_recipe
from tests.finetune import tiny
from tests.reliability import victims

LIMIT = row_measurement.LengthLimit(100, "train.micro_tokens", "error")
assert victims.SERVER  # its fork server has torch imported


def odd(recipe: Recipe, folder: Path, row: dict[str, Any]) -> Measured:
    """As `row_measurement.encode_row`, but some texts have their way with the process. `folder` is where the processor would be."""
    text = row["text"]
    if text == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "kill once" and not (folder / "was").exists():
        (folder / "was").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "leave":
        os._exit(3)
    if text == "fault":
        raise KeyError("a fault")
    return row_measurement.encode_row(LIMIT, folder, recipe, None, row)


def made(path: Path, cache: Path, count: int, measure: Callable[..., Any] = odd, processor: Any = None) -> tuple[bytes, bytes]:
    """Index and cache of a file, by so many processes."""
    workers = IndexWorkers(path, tiny.FOLDER, processor or path.parent, measure)
    index_building.build_index(
        path, cache, "key", partial(measure, tiny.RECIPE, path.parent), partial(workers.scan_all, count) if count else None
    )
    place = cached_samples.index_path(path, cache)
    return place.read_bytes(), cached_samples.samples_path(place).read_bytes()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_building, "SCANNED_BYTES", 150)


def test_processes_make_the_same_bytes_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", tiny.texts(60))
    assert len([*index_building.blocks_of(path.open("rb"), path)]) > 8
    assert made(path, tmp_path / "many", 3) == made(path, tmp_path / "one", 0)
    assert capsys.readouterr().err.startswith(f"indexing {path} in 3 processes\n")


@pytest.mark.slow
def test_a_process_that_dies_once_is_replaced(tmp_path: Path) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", [*tiny.texts(20), "kill once", *tiny.texts(20)])
    many = made(path, tmp_path / "many", 2)
    assert (tmp_path / "was").exists() and many == made(path, tmp_path / "one", 0)


@pytest.mark.parametrize(("text", "how"), [("kill", "SIGKILL"), pytest.param("leave", "exit code 3", marks=pytest.mark.slow)])
def test_a_row_that_ends_its_process_is_named(text: str, how: str, tmp_path: Path) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", [*tiny.texts(20), text, *tiny.texts(20)])
    with pytest.raises(UserError, match=rf"rows\.jsonl:21: reading this row killed its process twice \({how}\)"):
        made(path, tmp_path / "cache", 2)
    assert [place.name for place in (tmp_path / "cache").iterdir()] == [index_building.LOCK], "nothing of it is adopted"


def test_a_process_that_dies_while_it_answers_is_one_that_died() -> None:
    worker = index_workers._Worker.__new__(index_workers._Worker)
    worker._line = mock.Mock(recv=mock.Mock(side_effect=OSError("got end of file during message")))
    assert worker._answer(index_building.Block(b"{}", 0, 1)) is None


def test_a_process_that_cannot_be_started_again_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", [*tiny.texts(20), "kill", *tiny.texts(20)])
    monkeypatch.setattr(index_workers._Worker, "_restart", lambda _: "OSError: no process is left")
    with pytest.raises(UserError, match=r"rows\.jsonl: a process that reads its rows has ended, and .* again: OSError: no process is left"):
        made(path, tmp_path / "cache", 2)


def test_bad_rows_and_exceptions_of_the_recipe_name_their_place(tmp_path: Path) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", [*tiny.texts(20), "x", *tiny.texts(20), "y"])
    with pytest.raises(UserError, match=r"(?s)^2 invalid rows:.*rows\.jsonl:21: text must hold.* \(2 rows: lines 21, 42\)$"):
        made(path, tmp_path / "cache", 2)
    path = tiny.write_rows(tmp_path / "rows.jsonl", [*tiny.texts(20), "fault", *tiny.texts(20)])
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*KeyError: 'a fault'.*while reading .*rows\.jsonl:21"):
        made(path, tmp_path / "cache", 2)


class Unreadable:
    """A processor of which a file is gone when it is pickled: an `OSError` while the process that waits for it is well."""

    def __reduce__(self) -> Any:
        raise FileNotFoundError("vocabulary.txt")


@pytest.mark.parametrize("processor", [lambda: None, Unreadable()], ids=["a function", "an unreadable one"])
def test_a_processor_that_cannot_be_sent_leaves_the_work_to_this_process(
    processor: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", tiny.texts(20))
    many = made(path, tmp_path / "many", 2, partial(row_measurement.encode_row, LIMIT, tmp_path), processor=processor)
    assert f"indexing {path} in one process, since worker processes failed: " in capsys.readouterr().err
    assert many == made(path, tmp_path / "one", 0)


def measure_with_file(recipe: Recipe, folder: Path, row: dict[str, Any]) -> Measured:
    """As `encode_row`, for rows that name one file each."""
    return row_measurement.encode_row(LIMIT, folder, replace(recipe, files=lambda row: (row["text"],)), None, row)


def test_processes_make_the_same_list_of_files_as_one(tmp_path: Path) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", texts := tiny.texts(60))
    for text in texts:
        (tmp_path / text).write_text(text)
    assert made(path, tmp_path / "many", 2, measure_with_file) == made(path, tmp_path / "one", 0, measure_with_file)
    lists = [cached_samples.files_path(cached_samples.index_path(path, tmp_path / name)).read_bytes() for name in ("many", "one")]
    assert lists[0] == lists[1] and len(lists[0].splitlines()) == 60


def test_small_files_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny.write_rows(tmp_path / "rows.jsonl", tiny.texts(20))
    workers = IndexWorkers(path, tiny.FOLDER, None, odd)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    assert workers.choose_scan() is None
    monkeypatch.setattr(index_workers, "WORTH_BYTES", path.stat().st_size // 3)
    chosen = workers.choose_scan()
    assert isinstance(chosen, partial) and chosen.args == (3,)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(1))
    assert workers.choose_scan() is None


def check_other_processes(folder: Path, processor: Any, data: list[dict[str, Any]], tmp_path: Path) -> None:
    """That two processes, to which the processor was sent, read rows as this one does: for the tests of recipes."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in data * 8))
    measure = partial(row_measurement.encode_row, row_measurement.LengthLimit(10**6, "train.micro_tokens", "error"), tmp_path)
    workers = IndexWorkers(path, folder, processor, measure)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_building, "SCANNED_BYTES", path.stat().st_size // 5)
        index_building.build_index(
            path, tmp_path / "many", "key", partial(measure, load_recipe(folder), processor), partial(workers.scan_all, 2)
        )
    index_building.build_index(path, tmp_path / "one", "key", partial(measure, load_recipe(folder), processor))
    many, one = (cached_samples.index_path(path, tmp_path / name) for name in ("many", "one"))
    assert (
        many.read_bytes() == one.read_bytes()
        and cached_samples.samples_path(many).read_bytes() == cached_samples.samples_path(one).read_bytes()
    )
