"""Conversations with the same first question are in one split, and a requested number of rows is never exceeded."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from overtone.data_prep.chats.chat_split import compute_split_position, make_count_filter


def chat(*turns: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def test_a_split_position_depends_on_the_first_question_alone() -> None:
    first = compute_split_position(chat(("user", "Why?"), ("assistant", "So.")))
    assert 0 <= first < 1
    assert first == compute_split_position(chat(("system", "Be brief."), ("user", "Why?"), ("assistant", "No."), ("user", "And?")))
    assert (
        first
        == compute_split_position({"prompt": "Why?", "completion": "So."})
        == compute_split_position({"prompt": [{"role": "user", "content": "Why?"}]})
    )
    assert first != compute_split_position(chat(("user", "How?"), ("assistant", "So.")))
    assert compute_split_position(chat(("assistant", "Welcome."))) == compute_split_position(
        chat(("assistant", "Welcome."), ("assistant", "?"))
    )


def test_split_positions_are_spread_evenly() -> None:
    shares = [compute_split_position({"prompt": str(number), "completion": ""}) for number in range(2000)]
    assert 330 < sum(share < 0.2 for share in shares) < 470, "400, give or take four standard deviations"
    assert min(shares) >= 0, "--val-share 0 selects none"


def test_the_smallest_split_positions_are_selected_and_groups_stay_whole() -> None:
    validates = make_count_filter([0.5, 0.1, 0.3, 0.3, 0.3, 0.2, 0.9], 4)
    assert [share for share in (0.1, 0.2, 0.3, 0.5, 0.9) if validates(share)] == [0.1, 0.2, 0.5, 0.9], "the three alike do not fit"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([number / 10 for number in range(10)])), st.integers(0, 30))
def test_the_selected_groups_fit_the_row_limit_and_no_further_group_would_fit(shares: list[float], rows: int) -> None:
    validates = make_count_filter(shares, rows)
    free = rows - sum(map(validates, shares))
    assert free >= 0
    assert all(validates(share) or shares.count(share) > free for share in shares)
