"""Columns and keys of messages by other names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.data_prep.chats.column_mapping import parse_columns
from overtone.data_prep.chats.conversation_formats import ShapeError
from overtone.data_prep.cli import text
from overtone.finetune.errors import UserError

CHAT = [{"role": "user", "content": "Wo?"}, {"role": "assistant", "content": "Hier."}]
DIALOG = [{"wer": "user", "was": "Wo?"}, {"wer": "assistant", "was": "Hier."}]


def test_columns_and_keys_of_messages_get_the_names_of_the_formats() -> None:
    mapping = parse_columns(["prompt=frage, completion=antwort"])
    assert mapping.translate({"frage": "a", "antwort": "b", "id": 1, "prompt": "x"}) == {"prompt": "a", "completion": "b", "id": 1}
    assert mapping.list_replaced({"frage": "a", "antwort": "b", "prompt": "x"}) == ["prompt"]
    swapped = parse_columns(["prompt=completion,completion=prompt"])
    assert swapped.translate({"prompt": "a", "completion": "b"}) == {"prompt": "b", "completion": "a"}
    messages = parse_columns(["messages=dialog", "role=wer,content=was"])
    assert messages.translate({"dialog": DIALOG}) == messages.translate({"dialog": json.dumps(DIALOG)}) == {"messages": CHAT}
    assert parse_columns([]).translate({"prompt": "a"}) == {"prompt": "a"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("frage", "expected NAME=COLUMN"),
        ("prompt=", "expected NAME=COLUMN"),
        ("prompt=a,prompt=b", "each name once"),
        ("question=a,anser=b", "no chat format has anser; known are .*answer"),
    ],
)
def test_a_mapping_that_is_not_understood_is_refused(given: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parse_columns([given])


def test_a_missing_column_is_reported_with_those_found() -> None:
    with pytest.raises(ShapeError, match="no column frage, which --columns names; its keys are Frage, antwort"):
        parse_columns(["prompt=frage,completion=antwort"]).translate({"Frage": "a", "antwort": "b"})
    with pytest.raises(ShapeError, match=r"no was in messages.0., which --columns names; its keys are wer, text"):
        parse_columns(["content=was"]).translate({"messages": [{"wer": "user", "text": "a"}]})


def write_table(folder: Path, kind: str) -> Path:
    path = folder / f"a.{kind}"
    rows: list[dict[str, Any]] = [{"frage": "Wo?", "antwort": "Hier.", "note": 1}]
    if kind == "csv":
        path.write_text("frage;antwort;note\nWo?;Hier.;1\n")
    elif kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows[0] if kind == "jsonl" else rows) + "\n")
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "json"])
def test_tables_with_other_names_become_a_dataset(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet")
    words = [str(write_table(tmp_path, kind)), "--out", str(tmp_path / "out"), "--val-share", "0"]
    assert text.main(words) == 2 and "its keys are frage, antwort, note" in capsys.readouterr().err
    assert text.main([*words, "--columns", "prompt=frage,completion=antworten"]) == 2
    assert "no column antworten, which --columns names; its keys are frage, antwort, note" in capsys.readouterr().err
    assert text.main([*words, "--columns", "prompt=frage,completion=antwort"]) == 0
    (row,) = map(json.loads, (tmp_path / "out" / "train.jsonl").read_text().strip().split("\n"))
    assert (row["prompt"], row["completion"]) == ("Wo?", "Hier.")
    assert "unused keys, dropped: note (1 row)" in capsys.readouterr().out
