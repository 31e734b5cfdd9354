"""Tests of `overtone.recipes.speech.evaluation.metric_curves`."""

from __future__ import annotations

from overtone.data_prep.pages.report_charts import HEIGHT, WIDTH
from overtone.recipes.speech.evaluation.metric_curves import make_plot


def test_points_levels_and_ticks_are_at_their_values() -> None:
    plot = make_plot("WER", "%", [(100, 40.0), (150, 10.0), (300, 0.0)], {"recordings": 20.0})
    assert (plot.lowest, plot.highest) == ("0", "40")
    assert [(point.x, point.y) for point in plot.points] == [(0.0, 0.0), (WIDTH / 4, 0.75 * HEIGHT), (WIDTH, HEIGHT)]
    assert plot.points[1].label == "step 150: 10 %" and plot.path == "M0.0 0.0 L80.0 90.0 L320.0 120.0"
    assert [(level.y, level.name, level.value) for level in plot.levels] == [(HEIGHT / 2, "recordings", "20")]
    assert [tick.label for tick in plot.ticks] == ["100", "150", "300"]


def test_equal_values_are_a_horizontal_line_inside_the_plot() -> None:
    plot = make_plot("Pace", "characters/s", [(1, 14.0), (2, 14.0)], {})
    assert 0 < plot.points[0].y == plot.points[1].y < HEIGHT


def test_many_checkpoints_have_few_labels() -> None:
    assert len(make_plot("WER", "%", [(step, float(step)) for step in range(1, 40)], {}).ticks) <= 6
