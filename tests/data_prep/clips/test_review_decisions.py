"""Decisions survive crashes, the last one applies, and an invalid line is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overtone.data_prep.clips import review_decisions
from overtone.data_prep.clips.review_decisions import REVIEW, Decision
from overtone.data_prep.recordings.invisible_characters import remove_invisible
from overtone.finetune.errors import UserError


def written(folder: Path, *lines: str, end: str = "\n") -> Path:
    (folder / REVIEW).write_text("\n".join(lines) + end, encoding="utf-8")
    return folder


def test_a_missing_file_means_no_decisions(tmp_path) -> None:
    assert review_decisions.read_decisions(tmp_path) == {}


def test_the_last_decision_about_a_clip_applies(tmp_path) -> None:
    for action, text in (("reject", None), ("keep", None), ("text", "Good evening.\n")):
        review_decisions.append_decision(tmp_path, Decision(id="a", action=action, text=text))
    review_decisions.append_decision(tmp_path, Decision(id="b", action="keep", note="fine “as it is”"))
    found = review_decisions.read_decisions(tmp_path)
    assert {id: (one.action, one.text, one.note) for id, one in found.items()} == {
        "a": ("text", "Good evening.", None),
        "b": ("keep", None, "fine “as it is”"),
    }
    assert len((tmp_path / REVIEW).read_text().splitlines()) == 4
    assert json.loads((tmp_path / REVIEW).read_text().splitlines()[0]) == {"id": "a", "action": "reject"}


def test_an_undone_decision_is_removed(tmp_path) -> None:
    review_decisions.append_decision(tmp_path, Decision(id="a", action="reject"))
    review_decisions.append_decision(tmp_path, Decision(id="a", action="undo"))
    assert review_decisions.read_decisions(tmp_path) == {}


@given(st.text(min_size=1).filter(lambda text: remove_invisible(text)[0].strip()))
@settings(max_examples=50, deadline=None)
def test_any_text_comes_back_as_one_line(tmp_path_factory, text: str) -> None:
    folder = tmp_path_factory.mktemp("any")
    review_decisions.append_decision(folder, Decision(id="a", action="text", text=text))
    review_decisions.append_decision(folder, Decision(id="b", action="keep"))
    assert review_decisions.read_decisions(folder)["a"].text == Decision(id="a", action="text", text=text).text
    assert set(review_decisions.read_decisions(folder)) == {"a", "b"}


def test_a_text_that_was_pasted_loses_its_invisible_characters() -> None:
    assert Decision(id="a", action="text", text="light\u00adhouse\u2028keeper ").text == "lighthouse keeper"
    with pytest.raises(ValueError, match="at least 1 character"):
        Decision(id="a", action="text", text="\u200b")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "Invalid JSON"),
        ("[1]", "an object"),
        ('{"id": "a"}', "action: Field required"),
        ('{"id": "a", "action": "keep", "txt": "x"}', "txt: Extra inputs"),
        ('{"id": "a", "action": "drop"}', "action: Input should be 'keep', 'reject'"),
        ('{"id": "", "action": "keep"}', "id: String should have at least 1"),
        ('{"id": "a", "action": "text"}', 'the action "text" needs a "text"'),
        ('{"id": "a", "action": "text", "text": " "}', "text: String should have at least 1"),
    ],
)
def test_an_invalid_line_is_named(tmp_path, line, complaint) -> None:
    written(tmp_path, '{"id": "a", "action": "keep"}', line)
    with pytest.raises(UserError) as refused:
        review_decisions.read_decisions(tmp_path)
    assert f"{REVIEW}:2: " in str(refused.value)
    assert complaint in str(refused.value)
    assert "correct or remove the line" in str(refused.value)


def test_an_invalid_complete_last_line_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match="review.jsonl:1: action: Field required"):
        review_decisions.read_decisions(written(tmp_path, '{"id": "a"}', end=""))


def test_a_crash_at_any_byte_loses_at_most_the_line_that_was_being_written(tmp_path, capsys) -> None:
    first, second = '{"id":"a","action":"keep"}\n', '{"id":"b","action":"text","text":"Für Elise."}\n'
    whole = (first + second).encode()
    for length in range(len(first), len(whole)):
        (tmp_path / REVIEW).write_bytes(whole[:length])
        torn = len(first) < length < len(whole) - 1
        assert set(review_decisions.read_decisions(tmp_path)) == ({"a"} if length < len(whole) - 1 else {"a", "b"})
        assert ("the last line is incomplete" in capsys.readouterr().err) == torn
        review_decisions.append_decision(tmp_path, Decision(id="c", action="reject"))
        assert set(review_decisions.read_decisions(tmp_path)) == ({"a", "c"} if length < len(whole) - 1 else {"a", "b", "c"})
        assert capsys.readouterr().err == ""
