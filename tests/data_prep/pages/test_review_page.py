"""The contents, buttons and keyboard shortcuts of the review page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from overtone.data_prep.clips import review_decisions
from overtone.data_prep.clips.review_decisions import Decision
from overtone.data_prep.pages import review_page
from overtone.data_prep.pages.review_page import ReviewSession, build_page, format_facts
from overtone.data_prep.pages.review_queue import ALL, WORST
from tests.data_prep.example_clips import clip, dataset

NASTY = '"><script>alert(1)</script>'


@pytest.fixture
def made(tmp_path):
    (tmp_path / "clips").mkdir()
    kept = [clip(f"c{at}", snr_db=16.0 + at) for at in range(3)]
    for one in kept:
        (tmp_path / one.audio).write_bytes(b"")
    return dataset(tmp_path, kept, [])


def test_a_decision_is_written_before_the_next_clip_is_shown(made, tmp_path) -> None:
    session = ReviewSession(made)
    ids, id, sound, text, note, about, place = session.select_clips(ALL, WORST, "")
    assert (ids, id, text, note, place) == (["c0", "c1", "c2"], "c0", "Text of c0.", "", "1 of 3")
    assert Path(sound) == tmp_path / "clips" / "c0.flac"
    assert "kept: train" in about and "your decision" not in about
    following = session.save_decision("reject", ids, id, text, "hum")
    assert review_decisions.read_decisions(tmp_path) == {"c0": Decision(id="c0", action="reject", note="hum")}
    assert (following[0], following[-1]) == ("c1", "2 of 3")
    assert "your decision: reject" in session.move(-1, ids, "c1")[4]
    assert session.save_decision("undo", ids, "c0", text, "")[0] == "c0"
    assert review_decisions.read_decisions(tmp_path) == {}


def test_a_reopened_page_shows_earlier_decisions(made, tmp_path) -> None:
    session = ReviewSession(made)
    session.save_decision("text", ["c0"], "c0", "Better.", "")
    again = ReviewSession(made).select_clips(ALL, WORST, "")
    assert again[3] == "Better."


def test_a_decision_that_cannot_be_saved_is_reported(made, tmp_path) -> None:
    from gradio import Error

    session = ReviewSession(made)
    for id, text in (("c0", "  "), ("another", "Hello.")):
        with pytest.raises(Error, match="decision not saved"):
            session.save_decision("text", ["c0"], id, text, "")
    assert not (tmp_path / review_decisions.REVIEW).exists()


def test_an_empty_list_shows_no_clip(made) -> None:
    no_clip = ReviewSession(made).select_clips(ALL, WORST, "nothing holds this")[1:]
    assert no_clip == ["", None, "", "", "<p>No matching clips.</p>", "0 of 0"]


def test_texts_in_the_page_are_escaped(made) -> None:
    printed = format_facts(ReviewSession(made).queue, clip("x", (NASTY,), source=NASTY, speaker=NASTY), None)
    assert "<script>" not in printed
    assert printed.count("&lt;script&gt;") == 3


def test_every_keyboard_shortcut_has_a_button(made) -> None:
    keys = (Path(review_page.__file__).parent / "review_page.js").read_text()
    pressed = set(re.findall(r': "(\w+)"[,} ]', keys)) | set(re.findall(r'getElementById\("(\w+)"\)', keys))
    page = build_page(ReviewSession(made))
    there = {block.elem_id for block in page.blocks.values() if getattr(block, "elem_id", None)}
    assert pressed == {"next", "previous", "keep", "reject", "undo", "text"}
    assert pressed | {"player", "said"} == there
