"""The contents, buttons and keyboard shortcuts of the review page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from overtone.data_prep.clips import review_decisions
from overtone.data_prep.clips.review_decisions import Decision
from overtone.data_prep.pages import review_page
from overtone.data_prep.pages.review_page import DecisionCall, ReviewSession
from overtone.finetune.errors import UserError
from tests.data_prep.example_clips import clip, dataset
from tests.data_prep.page import Page

NASTY = '"><script>alert(1)</script>'


@pytest.fixture
def made(tmp_path):
    (tmp_path / "clips").mkdir()
    kept = [clip(f"c{at}", snr_db=16.0 + at) for at in range(3)]
    for one in kept:
        (tmp_path / one.audio).write_bytes(b"")
    return dataset(tmp_path, kept, [])


def decision(id: str, action: str, text: str = "", note: str = "") -> DecisionCall:
    return DecisionCall(id=id, action=action, text=text, note=note)


def ids(page: str) -> list[str]:
    return json.loads(re.search(r'id="ids">(.*?)</script>', page)[1])


def test_the_page_shows_the_first_clip_and_a_decision_is_on_disk_at_once(made, tmp_path) -> None:
    session = ReviewSession(made)
    page = session.render_page()
    parsed = Page(page)
    assert ids(page) == ["c0", "c1", "c2"] and ("textarea", "Text of c0.") in parsed.texts and ("span", "1 of 3") in parsed.texts
    assert parsed.all("audio")[0]["src"] == "sound?id=c0" and "kept: train" in parsed.text() and "your decision" not in page
    session.save_decision(decision("c0", "reject", "Text of c0.", "hum"))
    assert review_decisions.read_decisions(tmp_path) == {"c0": Decision(id="c0", action="reject", note="hum")}
    shown = session.show_clip("c0")
    assert "your decision: reject" in shown.facts and shown.note == "hum"
    session.save_decision(decision("c0", "undo"))
    assert review_decisions.read_decisions(tmp_path) == {} and "your decision" not in session.show_clip("c0").facts


def test_a_reopened_page_shows_earlier_decisions(made, tmp_path) -> None:
    ReviewSession(made).save_decision(decision("c0", "text", "Better."))
    assert ("textarea", "Better.") in Page(ReviewSession(made).render_page()).texts


def test_a_decision_that_cannot_be_saved_is_reported(made, tmp_path) -> None:
    session = ReviewSession(made)
    for unseen in ("  ", "\u200b", " \u00ad\u2060 "):
        with pytest.raises(UserError, match="enter the transcript"):
            session.save_decision(decision("c0", "text", unseen))
    with pytest.raises(KeyError):
        session.save_decision(decision("another", "text", "Hello."))
    assert not (tmp_path / review_decisions.REVIEW).exists()
    (tmp_path / review_decisions.REVIEW).mkdir()
    with pytest.raises(UserError, match=rf"{review_decisions.REVIEW} cannot be written \(.*; check its permissions"):
        session.save_decision(decision("c0", "keep", "Text of c0."))
    assert session.decisions == {}, "what is not on disk is not shown as decided"


def test_an_empty_list_shows_no_clip(made) -> None:
    page = ReviewSession(made).render_page(search="nothing holds this")
    assert ids(page) == [] and "No matching clips." in page and "0 of 0" in page and "src" not in Page(page).all("audio")[0]


def test_texts_in_the_page_are_escaped(made, tmp_path) -> None:
    nasty = clip("x", (NASTY,), text=NASTY, source=NASTY, speaker=NASTY)
    (tmp_path / nasty.audio).write_bytes(b"")
    session = ReviewSession(dataset(tmp_path, [], [nasty]))
    page = session.render_page(search="script")
    assert Page(page).all("script") == [{"type": "module", "src": "/assets/review_page.js"}, {"type": "application/json", "id": "ids"}]
    assert session.show_clip("x").facts.count("&lt;script&gt;") == 3 and "<script>" not in session.show_clip("x").facts


def test_every_control_has_a_label_and_every_keyboard_shortcut_a_button(made) -> None:
    keys = (Path(review_page.__file__).parent / "review_page.js").read_text()
    (presses,) = re.findall(r"const presses = \{(.*?)\};", keys)
    parsed = Page(ReviewSession(made).render_page())
    there = {attributes.get("id") for attributes in parsed.all("button")}
    assert set(re.findall(r': "(\w+)"', presses)) | {"text"} == there == {"next", "previous", "keep", "reject", "undo", "text"}
    labels = [text for tag, text in parsed.texts if tag == "label"]
    assert labels == ["Show", "Order", "Search text, recording, speaker, id", "Transcript", "Note"]
    assert parsed.all("audio")[0]["aria-label"] == "Clip"
