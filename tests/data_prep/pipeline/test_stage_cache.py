"""Stage results are found by their inputs."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from overtone.data_prep.pipeline.stage_cache import NotStoredError, Stages, StoredStages, make_key
from overtone.finetune.storage import files

NUMBERS = TypeAdapter(list[int])


def test_a_result_is_computed_once_per_input_and_counted(tmp_path) -> None:
    calls = []

    def compute() -> list[int]:
        calls.append(1)
        return [1, 2, 3]

    for _ in range(2):
        stages = Stages(tmp_path)
        assert stages.run("count", {"to": 3, "a": "ü"}, NUMBERS, compute) == [1, 2, 3]
        stages.run("count", {"a": "ü", "to": 3}, NUMBERS, compute)
    assert len(calls) == 1
    assert (stages.computed["count"], stages.reused["count"]) == (0, 2)
    stages.run("count", {"to": 4}, NUMBERS, compute)
    assert len(calls) == 2
    stages.run("other", {"to": 3, "a": "ü"}, NUMBERS, compute)
    assert len(calls) == 3


def test_a_result_whose_files_are_missing_is_computed_again(tmp_path) -> None:
    Stages(tmp_path).run("files", {}, NUMBERS, lambda: [1])
    assert Stages(tmp_path).run("files", {}, NUMBERS, lambda: [2], lambda result: result == [2]) == [2]
    assert Stages(tmp_path).run("files", {}, NUMBERS, lambda: [3], lambda result: result == [2]) == [2]


@pytest.mark.parametrize("damage", [b"", b"[1, 2", b'{"other": "form"}'])
def test_a_damaged_result_is_computed_again(damage, tmp_path) -> None:
    Stages(tmp_path).run("numbers", {}, NUMBERS, lambda: [1])
    (path,) = (tmp_path / "numbers").iterdir()
    path.write_bytes(damage)
    assert Stages(tmp_path).run("numbers", {}, NUMBERS, lambda: [2]) == [2]


def test_a_kill_while_writing_leaves_no_result(tmp_path) -> None:
    def die(operation, path) -> None:
        if operation == "rename":
            raise KeyboardInterrupt

    with files.watch(die), pytest.raises(KeyboardInterrupt):
        Stages(tmp_path).run("numbers", {}, NUMBERS, lambda: [1])
    assert Stages(tmp_path).run("numbers", {}, NUMBERS, lambda: [2]) == [2]


def test_keys_differ_with_any_value() -> None:
    assert len({make_key(value) for value in ({}, {"a": 1}, {"a": 1.5}, {"a": "1"}, {"b": 1}, {"a": [1]}, {"a": None})}) == 7


def test_a_read_only_cache_returns_stored_results_and_computes_nothing(tmp_path) -> None:
    Stages(tmp_path).run("numbers", {}, NUMBERS, lambda: [1])
    memory = StoredStages(tmp_path)
    assert memory.run("numbers", {}, NUMBERS, lambda: [2]) == [1]
    with pytest.raises(NotStoredError):
        memory.run("numbers", {"to": 3}, NUMBERS, lambda: [2])
    assert dict(memory.reused) == {"numbers": 1}
