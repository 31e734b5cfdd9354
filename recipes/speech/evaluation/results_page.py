"""An evaluation as one HTML page that needs no other file, no network and no script.

It uses style and template parts of the dataset report. Its content security policy forbids connections, and the template engine escapes
all texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from overtone.data_prep.audio.waveform import MASTER_RATE, Audio, encode_flac
from overtone.data_prep.pages.report_clips import AUDIO_BYTES, make_data_uri
from overtone.data_prep.pages.spectrogram_images import draw_spectrogram
from overtone.finetune.pages.jinja_environment import make_environment, read_style
from overtone.finetune.storage.synthetic_audio_mark import make_comment_of_copy
from overtone.recipes.speech.evaluation import result_rendering
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.intelligibility import AlignedWord
from overtone.recipes.speech.evaluation.metric_aggregation import Metric, ScoredClip, Verdict, metric_value
from overtone.recipes.speech.evaluation.metric_curves import Plot, make_plot
from overtone.recipes.speech.evaluation.results import SET_TITLES, Evaluation
from overtone.recipes.speech.evaluation.scoring import read_clip
from overtone.recipes.speech.evaluation.system_comparison import (
    Comparison,
    checkpoint_curve,
    compare_with_base,
    describe_pace_drifts,
    similarity_scales,
)
from overtone.recipes.speech.evaluation.systems import RECORDINGS

TEMPLATE = Path(__file__).with_suffix(".html")
SHOWN_TEXTS = 12
"""Number of texts with players. The clips of all texts are in the folder beside the page."""


@dataclass(frozen=True)
class ClipCard:
    """One clip as the page shows it."""

    name: str
    """Name of the system."""
    player: str
    """Data URI; empty if the page would become too large, or the clip is empty."""
    picture: str
    """Data URI; empty if the clip is empty."""
    missing: str
    """The reason why there is no player."""
    transcript: str | None
    words: Sequence[AlignedWord]
    """The transcript beside the text, word by word; empty without a transcript."""
    figures: str
    ended: bool


@dataclass(frozen=True)
class TextClips:
    """One text with the clips of all systems."""

    item: Item
    cards: list[ClipCard]


@dataclass(frozen=True)
class MetricChange:
    """One metric on one set of texts before and after training."""

    metric: str
    texts: str
    """The set, and the number of texts that both systems spoke."""
    recordings: str
    before: str
    after: str
    change: str
    """The difference, marked with ▲ if the value is higher and with ▼ if it is lower."""
    interval: str
    verdict: Verdict


@dataclass(frozen=True)
class MetricTable:
    """Metrics of all systems on one set of texts."""

    title: str
    head: list[str]
    rows: list[tuple[str, list[str]]]


def render(evaluation: Evaluation) -> str:
    """The whole page."""
    page = make_environment(TEMPLATE.parent).get_template(TEMPLATE.name)
    return page.render(
        title=Path(str(evaluation.settings.get("model", "voice"))).name,
        verdicts=result_rendering.verdicts(evaluation),
        judge=evaluation.judge,
        changes=list_changes(evaluation),
        compared=[evaluation.titles[name] for row in compare_with_base(evaluation)[-1:] for name in (row.base, row.system)],
        tables=[_table(evaluation, group) for group in evaluation.groups],
        worth=similarity_scales(evaluation),
        names=evaluation.names,
        plots=build_plots(evaluation),
        text_clips=choose_texts(evaluation),
        texts=len({clip.item.key for clips in evaluation.clips.values() for clip in clips}),
        titles=evaluation.titles,
        systems=[evaluation.titles[name] for name in evaluation.names],
        notes=[*describe_pace_drifts(evaluation), *evaluation.notes],
        settings=[(key, "–" if value is None else str(value)) for key, value in evaluation.settings.items()],
        shown=result_rendering.format_value,
        style=read_style(),
    )


def list_changes(evaluation: Evaluation) -> list[MetricChange]:
    """Before and after training, by metric and set of texts, of the last checkpoint; without metrics that are always zero."""
    return [_describe_change(evaluation, row) for row in result_rendering.select_last(compare_with_base(evaluation))]


def _describe_change(evaluation: Evaluation, row: Comparison) -> MetricChange:
    found, shown = row.difference, result_rendering.format_value
    arrow = "▲ " if found.change > 0 else "▼ " if found.change < 0 else ""
    return MetricChange(
        metric=f"{row.metric.title} ({row.metric.unit})",
        texts=f"{row.group}, {found.texts}",
        recordings=shown(metric_value(row.metric, evaluation.of(RECORDINGS, row.group))),
        before=shown(row.before),
        after=shown(row.after),
        change=arrow + shown(found.change),
        interval="–" if found.low is None else f"{shown(found.low)} to {shown(found.high)}",
        verdict=found.verdict,
    )


def build_plots(evaluation: Evaluation) -> list[tuple[str, list[Plot]]]:
    """(title of the set, plots of its metrics over the checkpoints); empty for fewer than two checkpoints."""
    found = [(SET_TITLES[group], [_plot(evaluation, group, metric) for metric in evaluation.metrics]) for group in evaluation.groups]
    return [(title, plots) for title, every in found if (plots := [one for one in every if one is not None])]


def choose_texts(evaluation: Evaluation) -> list[TextClips]:
    """The texts with the worst results of the last trained voice, at most `SHOWN_TEXTS`; the worst first, players up to a total size."""
    last = evaluation.trained[-1].name
    worst = sorted(evaluation.clips[last], key=lambda clip: (-badness(clip), clip.item.key))[:SHOWN_TEXTS]
    by_key = {name: {clip.item.key: clip for clip in clips} for name, clips in evaluation.clips.items()}
    shown, room = [], AUDIO_BYTES
    for clip in worst:
        cards = []
        for name in evaluation.names:
            if (own := by_key[name].get(clip.item.key)) is not None:
                cards.append(make_card(name, own, room, evaluation.metrics))
                room -= len(cards[-1].player)
        shown.append(TextClips(clip.item, cards))
    return shown


def badness(clip: ScoredClip) -> float:
    """Key for sorting clips by how bad they are: speech that did not end, then word errors, then low speaker similarity."""
    wrong = 0.0 if clip.errors is None else clip.errors.wrong_words / max(clip.errors.words, 1)
    distances = [1.0 - value for value in clip.similarities.values() if value is not None]
    return (0.0 if clip.ended else 10.0) + wrong + (sum(distances) / len(distances) if distances else 0.0)


def make_card(name: str, clip: ScoredClip, room: int, metrics: Sequence[Metric]) -> ClipCard:
    """A clip with its player, if that takes no more than `room` bytes."""
    samples = read_clip(clip.path)
    figures = [
        f"{metric.title} {result_rendering.format_value(value)} {metric.unit}"
        for metric in metrics
        if (value := metric_value(metric, [clip])) is not None
    ]
    if not len(samples):
        return ClipCard(name, "", "", "the model generated no audio", clip.transcript, clip.words, " · ".join(figures), clip.ended)
    player = make_data_uri("audio/flac", encode_flac(Audio(samples, MASTER_RATE), make_comment_of_copy(clip.path)))
    picture = make_data_uri("image/png", draw_spectrogram(samples))
    full = len(player) > room
    return ClipCard(
        name,
        "" if full else player,
        picture,
        f"the page has no room for more audio; the file is {clip.path}" if full else "",
        clip.transcript,
        clip.words,
        " · ".join(figures),
        clip.ended,
    )


def _table(evaluation: Evaluation, group: str) -> MetricTable:
    rows = [(evaluation.titles[name], cells) for name, cells in result_rendering.table_rows(evaluation, group)]
    return MetricTable(SET_TITLES[group], result_rendering.column_titles(evaluation), rows)


def _plot(evaluation: Evaluation, group: str, metric: Metric) -> Plot | None:
    points = checkpoint_curve(evaluation, metric, group)
    if len(points) < 2:
        return None
    steps = {system.name for system in evaluation.systems if system.step is not None}
    levels = {
        name: value
        for name in evaluation.names
        if name not in steps and (value := metric_value(metric, evaluation.of(name, group))) is not None
    }
    return make_plot(metric.title, metric.unit, points, levels)
