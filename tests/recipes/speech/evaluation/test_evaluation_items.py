"""Tests of `overtone.recipes.speech.evaluation.evaluation_items`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.evaluation import evaluation_items
from overtone.recipes.speech.evaluation.evaluation_items import SEEN, UNSEEN, Item


def accept(_: Item) -> None:
    return None


def write_rows(folder: Path, *rows: dict[str, Any], name: str = "eval.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


def read(path: Path, speaker: str | None = None, reference: Path | None = None) -> list[Item]:
    return evaluation_items.read_items(path, speaker, reference, accept)


def test_rows_are_read_with_and_without_recordings(tmp_path: Path) -> None:
    (tmp_path / "a.flac").touch()
    (tmp_path / "ref.flac").touch()
    whole = {"text": "Hello.", "speaker": " Anna  B ", "language": "en", "audio": "a.flac", "ref_audio": "ref.flac"}
    items = read(
        write_rows(tmp_path, {**whole, "ref_text": "Good day.", "audio_codes": [[1]]}, {"text": "Bye."}),
        speaker="Bert",
        reference=tmp_path / "other.flac",
    )
    assert items[0] == Item("eval-0001", "Hello.", "anna b", "english", tmp_path / "a.flac", tmp_path / "ref.flac", "Good day.")
    assert items[1] == Item("eval-0002", "Bye.", "bert", "auto", None, tmp_path / "other.flac")


def test_what_nobody_speaks_is_dropped_and_said(tmp_path: Path) -> None:
    given = {"text": "See [the **page**](https://example.org/a) now 🙂", "speaker": "a"}, {"text": "Plain (or not).", "speaker": "a"}
    items = read(write_rows(tmp_path, *given))
    assert [item.text for item in items] == ["See the page now", "Plain (or not)."]
    (note,) = evaluation_items.describe_unspoken(items)
    assert note == "1 text with parts that nobody speaks, which are dropped: eval-0001 (1 emoji, 2 markup)."
    assert evaluation_items.describe_unspoken(items[1:]) == []


def test_the_speakers_are_those_of_all_rows(tmp_path: Path) -> None:
    files = [
        write_rows(tmp_path, {"speaker": " Anna "}, {"text": "Hello."}),
        write_rows(tmp_path, {"speaker": "Bert"}, name="seen.jsonl"),
    ]
    assert evaluation_items.list_speakers(files, "ZED") == {"anna", "zed", "bert"}
    with pytest.raises(UserError, match=r"eval\.jsonl:2: the row has no speaker"):
        evaluation_items.list_speakers(files, None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"speaker": "a"}, "the row has no text to speak"),
        ({"text": "  ", "speaker": "a"}, "the row has no text to speak"),
        ({"text": "…!", "speaker": "a"}, "has no word in it"),
        ({"text": "Hello."}, "has no speaker"),
        ({"text": "Hello.", "speaker": "a", "audio": "gone.wav"}, "audio gone.wav: no such file"),
        ({"text": "Hello.", "speaker": "a", "ref_audio": "gone.wav"}, "ref_audio gone.wav: no such file"),
        ({"text": "Hello.", "speaker": "a", "audio": "../../etc/passwd"}, "leads outside of"),
        ({"text": "Hello.", "speaker": "a", "language": "xx"}, "unknown"),
        ({"text": "Hello.", "speaker": "a", "language": 5}, "unknown"),
        ({"text": "Hello.", "speaker": "a", "ref_text": 5}, "ref_text: expected the transcript of ref_audio as a text, found 5"),
    ],
)
def test_a_bad_row_is_refused_with_file_and_line(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = write_rows(tmp_path, {"text": "Good.", "speaker": "a"}, row)
    with pytest.raises(UserError) as error:
        read(path)
    assert f"{path}:2: " in str(error.value) and message in str(error.value)


def test_a_row_that_the_model_refuses_is_reported_with_file_and_line(tmp_path: Path) -> None:
    def check(item: Item) -> None:
        if item.speaker == "zed":
            raise UserError("nobody knows zed")

    path = write_rows(tmp_path, {"text": "Good.", "speaker": "a"}, {"text": "Hello.", "speaker": "Zed"})
    with pytest.raises(UserError, match=r"eval\.jsonl:2: nobody knows zed"):
        evaluation_items.read_items(path, None, None, check)


def test_a_text_is_seen_whatever_its_case_and_punctuation(tmp_path: Path) -> None:
    (tmp_path / "known").mkdir()
    fresh = write_rows(tmp_path, *({"text": text, "speaker": "a"} for text in ("Hello, you!", "New one.", "New two.", "New three.")))
    known = write_rows(
        tmp_path, *({"text": text, "speaker": "a"} for text in ("HELLO you", "b c", "d e", "f g", "h i")), name="known/eval.jsonl"
    )
    found = evaluation_items.mark_seen(read(fresh), read(known))
    assert [item.group for item in found[:4]] == [SEEN, UNSEEN, UNSEEN, UNSEEN]
    assert [(item.text, item.group) for item in found[4:]] == [("b c", SEEN), ("f g", SEEN)], "as many as there are unseen ones"
    assert len({item.key for item in found}) == len(found)


def test_a_limit_picks_evenly_from_each_set() -> None:
    items = [Item(str(number), "x", "a", "auto", group=UNSEEN if number < 10 else SEEN) for number in range(14)]
    assert [item.key for item in evaluation_items.limit_groups(items, 5)] == ["0", "2", "4", "6", "8", "10", "11", "12", "13"]
    assert evaluation_items.limit_groups(items, None) == items
    assert evaluation_items.list_groups(items) == [UNSEEN, SEEN]
