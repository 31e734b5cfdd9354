"""The report of a study: a table for the terminal, and table and curves as a PNG and as an HTML page.

The page needs no other file, no network and no script; its content security policy forbids connections.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from overtone.finetune.pages.jinja_environment import make_environment, read_style
from overtone.finetune.storage import files
from overtone.finetune.terminal import printable
from overtone.finetune.tuning.search_space import format_value
from overtone.finetune.tuning.study_record import StudyDefinition, TrialRecord
from overtone.finetune.tuning.trial_metric import TrialCurve, TrialMetric

PICTURE, PAGE = "report.png", "report.html"
LARGEST = 3.5e38
"""Largest value to plot: the range of fp32. matplotlib cannot scale an axis to some larger numbers."""
NAMED_CURVES = 10
"""Best trials that the legend names; more would cover the curves."""
SHOWN_ROWS = 30
"""Rows of the table in the picture. The page has all."""


def write_report(
    folder: Path, definition: StudyDefinition, metric: TrialMetric, ranked: Sequence[TrialRecord], curves: Mapping[int, TrialCurve]
) -> tuple[Path, Path]:
    """Write picture and page into the study's folder; returns their paths. `ranked`: the best trial first."""
    picture = draw_picture(metric, ranked, curves)
    files.write_bytes(folder / PICTURE, picture)
    files.write_text(folder / PAGE, render_page(folder.name, definition, metric, ranked, picture))
    return folder / PICTURE, folder / PAGE


def table_head(ranked: Sequence[TrialRecord], metric: TrialMetric) -> list[str]:
    return ["trial", *ranked[0].values, metric.name, "at step", "steps", "state", "minutes", "seed"]


def table_rows(ranked: Sequence[TrialRecord]) -> list[list[str]]:
    """Return one row for each trial, as texts."""
    return [
        [
            trial.name,
            *map(format_value, trial.values.values()),
            "–" if trial.value is None else f"{trial.value:.6g}",
            "–" if trial.value_step is None else str(trial.value_step),
            str(trial.step),
            trial.status,
            f"{trial.seconds / 60:.1f}",
            str(trial.run_seed),
        ]
        for trial in ranked
    ]


def render_table(ranked: Sequence[TrialRecord], metric: TrialMetric) -> str:
    """Return the table for a terminal, the best trial first."""
    cells = [[printable(cell).replace("\n", "\\n") for cell in row] for row in (table_head(ranked, metric), *table_rows(ranked))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)


def draw_picture(metric: TrialMetric, ranked: Sequence[TrialRecord], curves: Mapping[int, TrialCurve]) -> bytes:
    """Return a PNG with the metric of each trial over its steps, the metric over each key, and the table of the best trials."""
    from matplotlib.figure import Figure

    keys = list(ranked[0].values)
    rows = min(len(ranked), SHOWN_ROWS)
    heights = [4.2, 2.4 * -(-len(keys) // 3), 0.4 + 0.26 * rows]
    figure = Figure(figsize=(11, sum(heights) + 0.8), layout="constrained")
    above, middle, below = figure.subfigures(3, 1, height_ratios=heights, squeeze=False)[:, 0]
    _draw_curves(above.subplots(), metric, ranked, curves)
    plots = middle.subplots(-(-len(keys) // 3), min(3, len(keys)), squeeze=False).flatten()
    for axes, key in zip(plots, keys, strict=False):
        _draw_key(axes, key, metric, ranked)
    for axes in plots[len(keys) :]:
        axes.set_axis_off()
    table = below.subplots()
    table.set_axis_off()
    shown = [[_keep_plain(cell)[:24] for cell in row] for row in table_rows(ranked[:rows])]
    drawn = table.table(shown, colLabels=[_keep_plain(name) for name in table_head(ranked, metric)], loc="center", cellLoc="left")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(8)
    for cell in drawn.get_celld().values():
        cell.get_text().set_parse_math(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _draw_curves(axes: Any, metric: TrialMetric, ranked: Sequence[TrialRecord], curves: Mapping[int, TrialCurve]) -> None:
    """Best first in the legend, best on top."""
    for rank, trial in reversed([*enumerate(ranked)]):
        points = [(step, value) for step, value in curves[trial.number].points if abs(value) <= LARGEST]
        if points:
            style: dict[str, Any] = {"color": "tab:red", "linewidth": 2.2} if rank == 0 else {"linewidth": 1, "alpha": 0.6}
            marker = "." if len(points) < 60 else ""
            label = f"{trial.name} ({trial.status})" if rank < NAMED_CURVES else None
            axes.plot(*zip(*points, strict=True), marker=marker, label=label, **style)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(_keep_plain(metric.name), parse_math=False)
    axes.grid(alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles[::-1], labels[::-1], fontsize=8)


def _draw_key(axes: Any, key: str, metric: TrialMetric, ranked: Sequence[TrialRecord]) -> None:
    """Draw the metric of the trials over the values of one key; values that are not numbers are placed side by side."""
    measured = [trial for trial in ranked if trial.value is not None and abs(trial.value) <= LARGEST]
    values = [trial.values[key] for trial in measured]
    numeric = all(type(value) in (int, float) and abs(value) <= LARGEST for value in values)
    names = [*dict.fromkeys(map(format_value, values))]
    places = values if numeric else [names.index(format_value(value)) for value in values]
    if numeric and values and min(values) > 0 and max(values) / min(values) >= 20:
        axes.set_xscale("log")
    axes.scatter(places, [trial.value for trial in measured], s=18, c=["tab:red", *["tab:blue"] * len(measured)][: len(measured)])
    if not numeric:
        axes.set_xticks(range(len(names)), [_keep_plain(name)[:16] for name in names], parse_math=False)
    axes.set_xlabel(_keep_plain(key), parse_math=False)
    axes.set_ylabel(_keep_plain(metric.name), parse_math=False)
    axes.grid(alpha=0.3)


def _keep_plain(text: str) -> str:
    """Return the text without lone surrogates, which no font contains."""
    return text.encode(errors="replace").decode()


def render_page(title: str, definition: StudyDefinition, metric: TrialMetric, ranked: Sequence[TrialRecord], picture: bytes) -> str:
    """Return the whole page."""
    return (
        make_environment(Path(__file__).parent)
        .get_template("report.html")
        .render(
            title=title,
            count=len(ranked),
            metric=metric,
            head=[*table_head(ranked, metric), "how it ended"],
            rows=[[*cells, trial.message] for trial, cells in zip(ranked, table_rows(ranked), strict=True)],
            has_best=ranked[0].value is not None,
            picture=f"data:image/png;base64,{base64.b64encode(picture).decode()}",
            settings=describe_definition(definition),
            style=read_style(),
        )
    )


def describe_definition(definition: StudyDefinition) -> list[tuple[str, str]]:
    """Return name and value of each setting of a study."""
    stopping = definition.early_stopping
    asha = "none" if stopping is None else f"ASHA from step {stopping.grace} on, the best 1/{stopping.reduction:g} of each rung continue"
    space = [(key, format_value(value)) for key, value in definition.space.items()]
    fixed = [("recipe", definition.recipe), ("arguments", " ".join(definition.arguments)), ("seed of the draws", str(definition.seed))]
    return [*fixed, ("early stopping", asha), *space]
