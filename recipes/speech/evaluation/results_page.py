"""An evaluation as one HTML page that needs no other file, no network and no script.

Style and parts are those of the dataset report. The page's content security policy forbids every connection, and the template engine
escapes every text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.audio.waveform import MASTER_RATE, Audio, encode_flac
from data_prep.pages.report_audio import AUDIO_BYTES, draw_spectrogram, make_data_uri
from data_prep.pages.report_templates import make_environment, read_style
from recipes.speech.evaluation import result_files as documents
from recipes.speech.evaluation.curves import Plot, make_plot
from recipes.speech.evaluation.evaluation_texts import Item
from recipes.speech.evaluation.metrics import Metric, Scored, metric_value
from recipes.speech.evaluation.results import (
    SET_TITLES,
    Evaluation,
    checkpoint_curve,
    compare_with_base,
    describe_pace_drifts,
    similarity_scales,
)
from recipes.speech.evaluation.scoring import samples_of
from recipes.speech.evaluation.systems import RECORDINGS

TEMPLATE = Path(__file__).with_suffix(".html")
SHOWN = 12
"""Texts with players; the clips of all others are in the folder beside the page."""


@dataclass(frozen=True)
class Card:
    """One clip as the page shows it."""

    name: str
    """Name of the system."""
    player: str
    """Data URI; empty if the page has no room for it, or the clip no sound."""
    picture: str
    """Data URI; empty if the clip has no sound."""
    missing: str
    """Why there is no player."""
    heard: str | None
    figures: str
    ended: bool


@dataclass(frozen=True)
class TextClips:
    """One text with the clips of all systems."""

    item: Item
    cards: list[Card]


@dataclass(frozen=True)
class Table:
    """Metrics of all systems on one set of texts."""

    title: str
    head: list[str]
    rows: list[tuple[str, list[str]]]


def render(evaluation: Evaluation) -> str:
    """The whole page."""
    page = make_environment(TEMPLATE.parent).get_template(TEMPLATE.name)
    return page.render(
        title=Path(str(evaluation.settings.get("model", "voice"))).name,
        verdicts=[sentence.split("**") for sentence in documents.verdicts(evaluation)],
        tables=[_table(evaluation, group) for group in evaluation.groups],
        worth=similarity_scales(evaluation),
        names=evaluation.names,
        plots=build_plots(evaluation),
        text_clips=choose_texts(evaluation),
        texts=len({clip.item.key for clips in evaluation.clips.values() for clip in clips}),
        compared=bool(compare_with_base(evaluation)),
        notes=[*describe_pace_drifts(evaluation), *evaluation.notes],
        settings=[(key, "–" if value is None else str(value)) for key, value in evaluation.settings.items()],
        shown=documents.format_value,
        style=read_style(),
    )


def build_plots(evaluation: Evaluation) -> list[tuple[str, list[Plot]]]:
    """(title of the set, plots of its metrics over the checkpoints); empty for fewer than two checkpoints."""
    found = [(SET_TITLES[group], [_plot(evaluation, group, metric) for metric in evaluation.metrics]) for group in evaluation.groups]
    return [(title, drawn) for title, every in found if (drawn := [one for one in every if one is not None])]


def choose_texts(evaluation: Evaluation) -> list[TextClips]:
    """The `SHOWN` texts on which the last trained voice did worst, the worst first, with players as far as there is room."""
    last = [system.name for system in evaluation.systems if system.way == "named"][-1]
    worst = sorted(evaluation.clips[last], key=lambda clip: (-badness(clip), clip.item.key))[:SHOWN]
    by_key = {name: {clip.item.key: clip for clip in clips} for name, clips in evaluation.clips.items()}
    shown, room = [], AUDIO_BYTES
    for clip in worst:
        cards = []
        for name in evaluation.names:
            if (own := by_key[name].get(clip.item.key)) is not None:
                cards.append(_card(name, own, room, evaluation.metrics))
                room -= len(cards[-1].player)
        shown.append(TextClips(clip.item, cards))
    return shown


def badness(clip: Scored) -> float:
    """Order in which clips are shown: speech that did not end, then word errors, then a voice unlike the speaker's."""
    wrong = 0.0 if clip.errors is None else clip.errors.wrong_words / max(clip.errors.words, 1)
    unlike = [1.0 - value for value in clip.similarities.values() if value is not None]
    return (0.0 if clip.ended else 10.0) + wrong + (sum(unlike) / len(unlike) if unlike else 0.0)


def _card(name: str, clip: Scored, room: int, metrics: Sequence[Metric]) -> Card:
    samples = samples_of(clip.path)
    figures = [
        f"{metric.title} {documents.format_value(value)} {metric.unit}"
        for metric in metrics
        if (value := metric_value(metric, [clip])) is not None
    ]
    if not len(samples):
        return Card(name, "", "", "the model made no sound", clip.transcript, " · ".join(figures), clip.ended)
    player = make_data_uri("audio/flac", encode_flac(Audio(samples, MASTER_RATE)))
    picture = make_data_uri("image/png", draw_spectrogram(samples))
    full = len(player) > room
    return Card(
        name,
        "" if full else player,
        picture,
        f"the page has no room for more sound; the file is {clip.path}" if full else "",
        clip.transcript,
        " · ".join(figures),
        clip.ended,
    )


def _table(evaluation: Evaluation, group: str) -> Table:
    return Table(SET_TITLES[group], documents.column_titles(evaluation), documents.table_rows(evaluation, group))


def _plot(evaluation: Evaluation, group: str, metric: Metric) -> Plot | None:
    points = checkpoint_curve(evaluation, metric, group)
    if len(points) < 2:
        return None
    levels = {
        name: value
        for name in [RECORDINGS, *(system.name for system in evaluation.systems if system.step is None)]
        if (value := metric_value(metric, evaluation.of(name, group))) is not None
    }
    return make_plot(metric.title, metric.unit, points, levels)
