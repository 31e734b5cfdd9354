"""Charts count every value once and stay inside their frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overtone.data_prep.pages.report_charts import HEIGHT, WIDTH, choose_ticks, make_curve, make_histogram
from overtone.finetune.pages.jinja_environment import format_number

values = st.lists(st.floats(-1e6, 1e6) | st.none(), max_size=60)


@given(kept=values, lost=values)
@settings(max_examples=100, deadline=None)
def test_every_value_is_in_one_bar_and_every_bar_in_the_frame(kept, lost) -> None:
    drawn = make_histogram("Pitch", "Hz", kept, lost)
    known = [value for value in (*kept, *lost) if value is not None]
    if drawn is None:
        assert not known
        return
    tooltips = [bar.tooltip.rsplit(": ", 1)[1] for bar in drawn.bars]
    assert sum(int(text.split()[0]) for text in tooltips) == sum(value is not None for value in kept)
    assert sum(int(text.split(", ")[1].split()[0]) for text in tooltips) == sum(value is not None for value in lost)
    assert drawn.unknown == len(kept) + len(lost) - len(known)
    for bar in drawn.bars:
        assert 0 <= bar.x < bar.x + bar.width <= WIDTH
        assert -0.2 <= bar.lost_y <= bar.kept_y + 0.1 and bar.kept_y + bar.kept_height == pytest.approx(HEIGHT, abs=0.1)


def test_an_outlier_does_not_flatten_the_histogram() -> None:
    drawn = make_histogram("SNR", "dB", [*np.linspace(20, 40, 1000).tolist(), 100.0], [])
    assert drawn is not None
    assert drawn.beyond == 1
    assert len([bar for bar in drawn.bars if bar.kept_height > 0]) >= 15
    assert (drawn.median, drawn.middle) == ("30", ("21", "39"))


def test_a_curve_marks_the_limit_in_force() -> None:
    drawn = make_curve(np.array([0.0, 5.0, 10.0]), np.array([0.0, 30.0, 60.0]), 5.0, 30.0)
    assert drawn.path == "M0.0 120.0 L160.0 60.0 L320.0 0.0"
    assert (drawn.now.x, drawn.now_y, drawn.most) == (160.0, 60.0, 60.0)
    assert drawn.ticks[0].label == "0" and drawn.ticks[-1].label == "10"


def test_a_rule_that_removes_nothing_has_a_flat_curve() -> None:
    drawn = make_curve(np.array([0.0, 1.0]), np.array([0.0, 0.0]), 0.5, 0.0)
    assert drawn.path == "M0.0 120.0 L320.0 120.0"


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
@settings(max_examples=100, deadline=None)
def test_axis_ticks_are_round_and_enclose_the_values(low, more) -> None:
    found = choose_ticks(low, low + more, 8)
    assert len(found) >= 2
    slack = 1e-9 * (abs(low) + more + 1)
    assert found[0] <= low + slack and low + more <= found[-1] + slack


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-25.04, "−25"), (0.00123456, "0.00123"), (12345.0, "12\u202f300"), (999.6, "1\u202f000"), (1e-7, "1e−07")],
)
def test_numbers_are_formatted_for_readers(value, text) -> None:
    assert format_number(value) == text
