"""Curves of runs: what is drawn is what the log says."""

from __future__ import annotations

import json
import math
from pathlib import Path

from overtone.studio.loss_chart import MOST_POINTS, RunCurves, draw_chart, draw_loss, read_curves, thin_points
from overtone.studio.page_interface import JINJA


def write_log(folder: Path, *events: dict[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def test_a_log_gives_loss_validation_and_rate(tmp_path: Path) -> None:
    run = write_log(
        tmp_path / "a",
        {"event": "started", "step": 0, "total": 4},
        {"event": "step", "step": 1, "loss": 3.0, "lr": 0.1},
        {"event": "step", "step": 2, "loss": 2.0, "lr": 0.2},
        {"event": "step", "step": 3, "loss": 9.0, "lr": 0.9},
        {"event": "resumed", "step": 2, "total": 4},
        {"event": "step", "step": 3, "loss": 1.0, "lr": 0.3},
        {"event": "evaluation", "step": 3, "val/loss": 1.5},
        {"event": "step", "step": 4, "loss": "wrong", "lr": []},
    )
    assert read_curves(run) == RunCurves({1: 3.0, 2: 2.0, 3: 1.0}, {3: 1.5}, {1: 0.1, 2: 0.2, 3: 0.3})
    assert read_curves(tmp_path / "none") == RunCurves({}, {}, {})


def test_curves_lie_inside_the_axes_and_end_at_the_last_value() -> None:
    chart = draw_chart("Loss", {"a": [(1, 3.0), (2, 2.0), (5, 1.0)], "one point": [(1, 1.0)]})
    assert chart is not None
    (curve,) = chart.curves
    points = [tuple(map(float, point.split())) for point in curve.path.removeprefix("M").split("L")]
    assert points[0][0] == 0 and points[1][0] == 80 and points[-1][0] == 320 and points[0][1] <= points[1][1] <= points[2][1] <= 120
    assert curve.last == "1" and [tick.label for tick in chart.ticks] == ["1", "2", "3", "4", "5"]
    assert draw_chart("Loss", {"a": [(1, 1.0)]}) is None and draw_chart("Loss", {}) is None


def test_a_diverged_run_is_drawn_as_one() -> None:
    points = [(1, 3.0), (2, math.nan), (3, 2.0), (4, 1.0), (5, math.nan), (6, math.nan)]
    chart = draw_chart("Loss", {"a": points, "all": [(1, math.nan), (2, math.inf)]})
    assert chart is not None
    broken, never = chart.curves
    assert broken.path.count("M") == 2 and broken.breaks == [64.0, 256.0, 320.0] and broken.last == "NaN since step 5"
    assert never.path == "" and never.breaks == [0.0, 64.0] and never.last == "beyond 1e+30 since step 1"
    assert "nan" not in broken.path and 'class="broken"' in str(JINJA.get_template("run_parts.html").module.curve_chart(chart))  # type: ignore[attr-defined]


def test_values_without_a_place_on_an_axis_break_the_line() -> None:
    chart = draw_chart("Loss", {"a": [(1, 1e308), (2, -1e308), (3, 1.0), (4, 2.0)]})
    assert chart is not None and chart.curves[0].breaks == [0.0, 106.7] and chart.curves[0].last == "2"


def test_a_break_survives_the_averages() -> None:
    thin = thin_points([(step, math.nan if step == 5000 else 1.0) for step in range(1, 10_001)])
    assert sum(math.isnan(value) for _, value in thin) == 1


def test_a_flat_curve_is_drawn() -> None:
    chart = draw_chart("Rate", {"a": [(1, 0.0), (2, 0.0)]})
    assert chart is not None and "nan" not in chart.curves[0].path


def test_runs_are_told_apart_by_name() -> None:
    runs = {name: RunCurves({1: 2.0, 2: 1.0}, {}, {}) for name in ("a", "b")}
    chart = draw_loss(runs)
    assert chart is not None and [one.name for one in chart.curves] == ["a, training", "b, training"]
    single = draw_loss({"a": runs["a"]})
    assert single is not None and [one.name for one in single.curves] == ["training"]


def test_a_long_curve_is_averaged() -> None:
    points = [(step, float(step % 2)) for step in range(1, 10_001)]
    thin = thin_points(points)
    assert len(thin) <= MOST_POINTS and thin[-1] == points[-1]
    assert all(abs(value - 0.5) < 0.02 for _, value in thin[:-1])
    assert [step for step, _ in thin] == sorted({step for step, _ in thin})
