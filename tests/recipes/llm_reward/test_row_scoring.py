"""`overtone generate` scores rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.cli import generate
from overtone.recipes.llm_reward import row_scoring
from tests.recipes.llm_reward.tiny_scorers import LABELLED, PAIRS, write_rows


def score(model: Path, *words: object) -> int:
    return generate.main(["--model", str(model), *map(str, words)])


def read_written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_pairs_and_texts_get_rewards(reward_export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    sides = [{"messages": [*pair["prompt"], *pair[side]]} for pair in PAIRS for side in ("chosen", "rejected")]
    rows = write_rows(tmp_path / "some rows.jsonl", [*PAIRS, *sides])
    assert score(reward_export, "--rows", rows, "--out", tmp_path / "new" / "out.jsonl") == 0
    assert "4 of 4 (100.0%) are pairs whose chosen answer has the higher reward" in capsys.readouterr().err
    found = read_written(tmp_path / "new" / "out.jsonl")
    assert [{key: row[key] for key in given} for row, given in zip(found, [*PAIRS, *sides], strict=True)] == [*PAIRS, *sides]
    pairs = [value for row in found[:4] for value in (row["chosen_reward"], row["rejected_reward"])]
    assert pairs == pytest.approx([row["reward"] for row in found[4:]], abs=1e-5)
    monkeypatch.setattr(row_scoring, "AT_ONCE", 3)
    assert score(reward_export, "--rows", rows) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [row.get("reward") for row in printed] == pytest.approx([row.get("reward") for row in found], abs=1e-5)
    assert score(reward_export, "--text", "Good day.") == 0
    assert '"reward": ' in capsys.readouterr().out


def test_a_classifier_names_the_class(class_export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [*LABELLED, {"text": "no label"}])
    assert score(class_export, "--rows", rows, "--out", tmp_path / "out.jsonl") == 0
    found = read_written(tmp_path / "out.jsonl")
    right = sum(row["class"] == row["label"] for row in found[:-1])
    assert f"{right} of 9 ({right / 9:.1%}) have the label of the row" in capsys.readouterr().err and right > 4
    for row in found:
        assert {*row["probabilities"]} == {"bad", "good", "open"} and sum(row["probabilities"].values()) == pytest.approx(1)
        assert row["class"] == max(row["probabilities"], key=row["probabilities"].get)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"text": ""}, "rows.jsonl:2: the row has no tokens besides padding"),
        ({"text": "no " * 200}, "tokens, and the model has 96 positions; shorten the text"),
        ({"text": "x", "reward": 1}, "rows.jsonl:2: has the key reward, which the result would replace; rename it"),
        ({"prompt": "x", "chosen": "y"}, "rows.jsonl:2: has no 'rejected'"),
        ({}, "rows.jsonl:2: expected"),
    ],
)
def test_a_row_that_cannot_be_scored_is_named_before_the_first_is(
    row: dict[str, Any], problem: str, reward_export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": "x"}, row])
    assert score(reward_export, "--rows", rows, "--out", tmp_path / "out.jsonl") == 2
    assert problem in capsys.readouterr().err and not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        (True, 'rows.jsonl:2: "label" must be the name of a class, found True'),
        ("Good", "rows.jsonl:2: \"label\" is 'Good', which is not among the 3 labels of the model"),
    ],
)
def test_a_label_that_the_model_lacks_is_named_before_a_row_is_scored(
    label: object, problem: str, class_export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [LABELLED[0], {"text": "x", "label": label}])
    assert score(class_export, "--rows", rows, "--out", tmp_path / "out.jsonl") == 2
    assert problem in capsys.readouterr().err and not (tmp_path / "out.jsonl").exists()


def test_mistakes_are_explained(class_export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    for words, problem in (
        (["--rows", tmp_path / "empty.jsonl"], "has no rows; give a JSONL file"),
        (["--rows", tmp_path / "list.jsonl"], "list.jsonl:1: "),
        (["--rows", tmp_path / "gone.jsonl"], "gone.jsonl: No such file"),
        (["--text", "x", "--out", tmp_path / "empty.jsonl"], "empty.jsonl exists; remove it, or give another name"),
        (["--text", "\udcff"], "--text: the row contains half of a character (the lone surrogate \\udcff); give complete characters"),
        (["--text", "x", "--allow-dropped", "all"], "--allow-dropped all: expected one of system"),
        (["--rows", write_rows(tmp_path / "pairs.jsonl", PAIRS)], "pairs.jsonl:1: is a pair of answers, and the model is a classifier"),
    ):
        assert score(class_export, *words) == 2
        assert problem in capsys.readouterr().err
