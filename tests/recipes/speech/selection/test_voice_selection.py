"""The texts, weights and settings of a selection; `tests/recipes/speech/cli/test_select_voice.py` selects among whole runs."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import JsonValue

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.recipes.speech.evaluation import intelligibility
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.selection.candidate_ranking import DEFAULT_WEIGHTS
from overtone.recipes.speech.selection.voice_selection import (
    SelectionOptions,
    check_numbers,
    complete_weights,
    describe_settings,
    read_text_file,
)


def test_lines_of_a_file_are_for_the_speaker_of_the_data(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("Good morning.\n\nIt is 12 o'clock.\n")
    rows = [Item("a", "Hello.", "anna", "dutch")]
    found = read_text_file(file, rows, None, lambda _: None)
    assert [(item.key, item.text, item.speaker, item.language) for item in found] == [
        ("text-0001", "Good morning.", "anna", "dutch"),
        ("text-0003", "It is 12 o'clock.", "anna", "dutch"),
    ]
    both = [*rows, Item("b", "Hello.", "bert", "english")]
    with pytest.raises(UserError, match=r"texts.txt:1: who speaks it\? The data has anna, bert; give --speaker NAME"):
        read_text_file(file, both, None, lambda _: None)
    assert {item.speaker for item in read_text_file(file, both, "Bert", lambda _: None)} == {"bert"}


def test_lines_are_read_as_they_are_spoken(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("Plain.\nSee **this** 🙂 now.\n")
    found = read_text_file(file, [Item("a", "Hello.", "anna", "english")], None, lambda _: None)
    assert [(item.text, item.unspoken) for item in found] == [("Plain.", ""), ("See this now.", "1 emoji, 1 markup")]


def test_lines_that_cannot_be_spoken_are_named(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("Good morning.\n?!\n")
    with pytest.raises(UserError, match=r"texts.txt:2: '\?!' has no word in it"):
        read_text_file(file, [Item("a", "Hello.", "anna", "english")], None, lambda _: None)

    def refuse(_: Item) -> None:
        raise UserError("no such speaker")

    with pytest.raises(UserError, match="texts.txt:1: no such speaker"):
        read_text_file(file, [Item("a", "Hello.", "anna", "english")], None, refuse)


def describe(asr: str, rows: Path) -> dict[str, JsonValue]:
    return describe_settings(SimpleNamespace(speaker_model=None, options=SelectionOptions(rows, asr)))  # type: ignore[arg-type]  # a part of a plan


def test_measures_of_the_demo_s_whisper_are_not_mixed_with_those_before_its_retry(tmp_path: Path) -> None:
    files.write_text(rows := tmp_path / "val.jsonl", "")
    plain, demo = describe("small", rows), describe("whisper-demo-en", rows)
    retry = intelligibility.describe_retry("whisper-demo-en")
    assert demo == {**plain, "asr": demo["asr"], **retry} and demo["asr"] != plain["asr"] and len(demo) > len(plain)


def test_measures_by_other_weights_under_the_same_name_are_not_reused(tmp_path: Path) -> None:
    files.write_text(rows := tmp_path / "val.jsonl", "")
    found = []
    for content in (b"old weights", b"new weights", b"old weights"):
        (tmp_path / "mine.pt").write_bytes(content)
        found.append(describe(str(tmp_path / "mine.pt"), rows))
    assert found[0] == found[2] != found[1]


def test_weights_are_those_of_all_measures() -> None:
    assert complete_weights({"pace": 0}) == {**DEFAULT_WEIGHTS, "pace": 0}
    for value in (-1.0, math.nan, math.inf):
        with pytest.raises(UserError, match="--weights wer=.*: give MEASURE=NUMBER"):
            complete_weights({"wer": value})


def test_a_selection_needs_a_strength() -> None:
    with pytest.raises(UserError, match="--strengths: give at least one"):
        check_numbers(SelectionOptions(Path("val.jsonl"), "small", strengths=()))
