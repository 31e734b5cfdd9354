"""Filters and order of the review queue, and the decisions that its buttons write."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overtone.data_prep.clips.review_decisions import Decision
from overtone.data_prep.pages.review_queue import (
    ALL,
    DECIDED,
    IN_ORDER,
    KEPT,
    LONGEST,
    OPEN,
    REJECTED,
    SHORTEST,
    WORST,
    ReviewQueue,
    build_queue,
    list_views,
    make_decision,
    select_clips,
)
from overtone.finetune.errors import UserError
from tests.data_prep.example_clips import clip, dataset, whole

CLIPS = [
    clip("a", snr_db=30.0, seconds=3.0, start=9.0, text="The Ärzte sing."),
    clip("b", snr_db=16.0, seconds=5.0, source="b.wav"),
    clip("c", ("noisy", "too_fast"), snr_db=5.0, seconds=4.0, start=1.0, text="Über den Dächern."),
    clip("d", snr_db=40.0, seconds=9.0, speaker="bob", source="c.wav"),
]


@pytest.fixture
def queue(tmp_path) -> ReviewQueue:
    (tmp_path / "clips").mkdir()
    for one in CLIPS:
        (tmp_path / one.audio).write_bytes(b"")
    kept, lost = ([one for one in CLIPS if bool(one.reasons) == rejected] for rejected in (False, True))
    lost += [whole("x.mp3", "unreadable"), clip("mute", ("no_text",), audio=""), clip("gone", ("noisy",))]
    return build_queue(dataset(tmp_path, kept, lost))


def test_only_clips_with_audio_are_in_the_queue(queue) -> None:
    assert sorted(queue.clips) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("order", "ids"), [(WORST, "cbad"), (IN_ORDER, "cabd"), (SHORTEST, "acbd"), (LONGEST, "dbca")])
def test_the_queue_is_sorted_by_the_chosen_order(queue, order, ids) -> None:
    assert select_clips(queue, {}, ALL, order, "") == list(ids)


@pytest.mark.parametrize(
    ("view", "ids"), [(ALL, "cabd"), (KEPT, "abd"), (REJECTED, "c"), (OPEN, "cad"), (DECIDED, "b"), ("too_fast", "c"), ("clipped", "")]
)
def test_the_queue_is_filtered_by_the_chosen_view(queue, view, ids) -> None:
    assert select_clips(queue, {"b": Decision(id="b", action="keep")}, view, IN_ORDER, "") == list(ids)


def test_only_views_with_a_possible_clip_are_listed(queue) -> None:
    assert list_views(queue) == [ALL, KEPT, REJECTED, OPEN, DECIDED, "noisy", "too_fast"]


@pytest.mark.parametrize(
    ("words", "ids"), [("ärzte", "a"), ("DÄCHERN über", "c"), ("bob", "d"), ("b.wav", "b"), ("nobody", ""), ("  ", "cabd")]
)
def test_search_matches_all_words_in_any_case(queue, words, ids) -> None:
    assert select_clips(queue, {}, ALL, IN_ORDER, words) == list(ids)


def test_a_dataset_without_clips_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match="has no clips with audio; create it with"):
        build_queue(dataset(tmp_path, [], [whole("x.mp3", "unreadable")]))


def test_each_button_writes_its_decision() -> None:
    said = clip("a", text="Hello there.")
    assert make_decision(said, None, "keep", "Hello there.", " ") == Decision(id="a", action="keep")
    assert make_decision(said, None, "keep", "Hello  you.\n", "fine") == Decision(id="a", action="keep", text="Hello you.", note="fine")
    assert make_decision(said, None, "text", "Hello there.", "") == Decision(id="a", action="text", text="Hello there.")
    assert make_decision(said, None, "reject", "", "") == Decision(id="a", action="reject")
    assert make_decision(said, Decision(id="a", action="keep"), "undo", "whatever", "") == Decision(id="a", action="undo")
    with pytest.raises(UserError, match="enter the transcript"):
        make_decision(said, None, "text", "  ", "")


@given(st.lists(st.sampled_from(["keep", "reject", "text"]), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_a_corrected_text_survives_later_decisions(actions) -> None:
    """A run applies the correction, so the dataset comes to hold it: that must not make later decisions forget it."""
    decision = make_decision(clip("a", text="Wrong."), None, "text", "Right.", "")
    for action in actions:
        decision = make_decision(clip("a", text="Right."), decision, action, "Right.", "")
    assert decision.text == "Right."
