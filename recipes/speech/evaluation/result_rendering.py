"""The result files of an evaluation in JSON and Markdown."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import JsonValue

from overtone.finetune.exporting.model_card_metadata import make_model_index
from overtone.finetune.pages.jinja_environment import format_number
from overtone.recipes.speech.evaluation.confidence_intervals import LEAST_TEXTS
from overtone.recipes.speech.evaluation.metric_aggregation import ScoredClip, Verdict, metric_value
from overtone.recipes.speech.evaluation.results import SET_TITLES, Evaluation
from overtone.recipes.speech.evaluation.system_comparison import (
    Comparison,
    SimilarityScale,
    compare_with_base,
    describe_pace_drifts,
    similarity_scales,
)
from overtone.version import __version__

AGAINST: dict[Verdict, str] = {
    "better": "better than",
    "worse": "worse than",
    "no clear difference": "no clear difference from",
    "too few texts": "too few texts to compare with",
}
"""Verdict → the words before the name of the base, in the order of the summary."""


def build_record(evaluation: Evaluation) -> dict[str, Any]:
    """All results and clips, for JSON. Unknown values are None."""
    return {
        "overtone": __version__,
        "settings": dict(evaluation.settings),
        "notes": [*evaluation.notes, *describe_pace_drifts(evaluation)],
        "figures": {name: _metrics(evaluation, name) for name in evaluation.names},
        "similarity": {one.encoder: _without_name(one) for one in similarity_scales(evaluation)},
        "compared": [_comparison(row) for row in compare_with_base(evaluation)],
        "clips": [_clip(name, clip) for name in evaluation.names for clip in evaluation.clips[name]],
    }


def render_markdown(evaluation: Evaluation) -> str:
    """Markdown, also readable in a terminal."""
    parts = ["# Evaluation", *verdicts(evaluation)]
    for group in evaluation.groups:
        parts += [f"## {SET_TITLES[group]}", _table(evaluation, group)]
    parts += [_similarity_table(evaluation)] if evaluation.encoders else []
    notes = [*describe_pace_drifts(evaluation), *evaluation.notes]
    parts += ["## Notes", "\n".join(f"- {note}" for note in notes)] if notes else []
    return "\n\n".join(part for part in parts if part) + "\n"


def build_model_index(evaluation: Evaluation, data: str) -> list[dict[str, JsonValue]]:
    """The results of the last trained voice in the form of a model card on the hub. `data`: name of the evaluated texts."""
    system = evaluation.trained[-1]
    results = {
        f"{data}, {group} texts": {
            metric.key: round(value, 4)
            for metric in evaluation.metrics
            if metric.better and (value := metric_value(metric, evaluation.of(system.name, group))) is not None
        }
        for group in evaluation.groups
    }
    return make_model_index(system.name, "text-to-speech", results)


def verdicts(evaluation: Evaluation) -> list[str]:
    """State whether training improved the voice: a summary, and a sentence for each metric that is not always zero. If there are several
    checkpoints, the last one is judged."""
    rows = compare_with_base(evaluation)
    if not rows and len(evaluation.trained) == len(evaluation.systems):
        return ["Whether training helped is unknown: there is no base to compare with. Give it with --base FOLDER."]
    if not rows:
        return [
            "Whether training helped is unknown: fewer than two texts were spoken by both the base and the trained voice. "
            f"Give more; from {LEAST_TEXTS} texts on there is a verdict."
        ]
    compared = select_last(rows)
    return [summarize(compared), *map(format_verdict, compared)] if compared else []


def select_last(rows: list[Comparison]) -> list[Comparison]:
    """The comparisons of the last checkpoint, without metrics that are always zero."""
    return [row for row in rows if row.system == rows[-1].system and (row.before or row.after)]


def summarize(rows: list[Comparison]) -> str:
    """`Better than base: Similarity, own encoder. No clear difference: WER; CER.` `rows`: not empty, all with the
    same base."""
    several = len({row.group for row in rows}) > 1
    sentences: list[str] = []
    for verdict, against in AGAINST.items():
        named = [f"{row.metric.title} ({row.group})" if several else row.metric.title for row in rows if row.difference.verdict == verdict]
        if named:
            start = verdict if sentences else f"{against} {rows[0].base}"
            sentences.append(f"{start[0].upper()}{start[1:]}: {'; '.join(named)}.")
    return " ".join(sentences)


def format_verdict(row: Comparison) -> str:
    """`WER, unseen texts: better than base. 12.1 → 8.3 % (−3.8; 95 % interval −5 to −2.4; 40 texts)`."""
    found = row.difference
    interval = "" if found.low is None else f"95 % interval {format_value(found.low)} to {format_value(found.high)}; "
    return (
        f"{row.metric.title}, {row.group} texts: **{AGAINST[found.verdict]} {row.base}**. "
        f"{format_value(row.before)} → {format_value(row.after)} {row.metric.unit} "
        f"({format_value(found.change)}; {interval}{found.texts} texts)"
    )


def format_value(value: float | None) -> str:
    """A number with three digits; a dash for an unknown value."""
    return "–" if value is None else format_number(value)


def column_titles(evaluation: Evaluation) -> list[str]:
    """Titles over the cells of `table_rows`."""
    return ["texts", *(f"{metric.title} ({metric.unit})" for metric in evaluation.metrics)]


def table_rows(evaluation: Evaluation, group: str) -> list[tuple[str, list[str]]]:
    """(system, cells): the number of texts that it spoke, and its metrics, as text."""
    spoken = [(name, evaluation.of(name, group)) for name in evaluation.names]
    return [
        (name, [str(len(clips)), *(format_value(metric_value(metric, clips)) for metric in evaluation.metrics)]) for name, clips in spoken
    ]


def _table(evaluation: Evaluation, group: str) -> str:
    return _markdown_table(["", *column_titles(evaluation)], [[name, *cells] for name, cells in table_rows(evaluation, group)])


def _similarity_table(evaluation: Evaluation) -> str:
    head = ["encoder", "another speaker", "the speaker", *(f"{name}: place" for name in evaluation.names)]
    rows = [
        [
            one.encoder,
            format_value(one.stranger),
            format_value(one.same),
            *(format_value(one.places.get(name)) for name in evaluation.names),
        ]
        for one in similarity_scales(evaluation)
    ]
    return (
        "## Scale of similarity\n\nMean similarity of real clips to other speakers, and to other clips of their own speaker. "
        "A place is the position between these two: 0 is another speaker, 1 is the speaker.\n\n" + _markdown_table(head, rows)
    )


def _markdown_table(head: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


def _metrics(evaluation: Evaluation, name: str) -> dict[str, object]:
    return {
        group: {
            "texts": len(clips := evaluation.of(name, group)),
            **{metric.key: metric_value(metric, clips) for metric in evaluation.metrics},
        }
        for group in evaluation.groups
    }


def _without_name(one: SimilarityScale) -> dict[str, object]:
    return {"another speaker": one.stranger, "the speaker": one.same, "places": dict(one.places)}


def _comparison(row: Comparison) -> dict[str, object]:
    return {
        "system": row.system,
        "base": row.base,
        "set": row.group,
        "metric": row.metric.key,
        "before": row.before,
        "after": row.after,
        **dataclasses.asdict(row.difference),
    }


def _clip(name: str, clip: ScoredClip) -> dict[str, object]:
    item = clip.item
    return {
        "system": name,
        "key": item.key,
        "set": item.group,
        "speaker": item.speaker,
        "language": item.language,
        "text": item.text,
        "heard": clip.transcript,
        "ended": clip.ended,
        **dataclasses.asdict(clip.sound),
        "real_seconds": clip.real_seconds,
        "errors": None if clip.errors is None else dataclasses.asdict(clip.errors),
        "likeness": dict(clip.similarities),
    }
