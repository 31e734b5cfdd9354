"""An evaluation as one HTML page: no file beside it, no network, no script.

Look and pieces are those of the dataset report. The page forbids itself every connection (a content security policy), and every text in it
is escaped by the template engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.audio import MASTER_RATE, Audio, flac
from data_prep.report_parts import environment, style
from data_prep.report_sounds import AUDIO_BYTES, data_uri, spectrogram

from . import eval_documents as documents
from .eval_curves import Plot, plot
from .eval_figures import Metric, Scored, figure
from .eval_listening import samples_of
from .eval_outcome import SET_TITLES, Evaluation, compared, curve, drifts, worth
from .eval_rows import Item
from .eval_systems import RECORDINGS

FOLDER = Path(__file__).parent
SHOWN = 12
"""Texts with players; the clips of all others lie beside the page."""


@dataclass(frozen=True)
class Card:
    """One clip as the page shows it."""

    name: str
    """Of the system."""
    player: str
    """Data URI; empty: no room for it, or no sound."""
    picture: str
    """Data URI; empty: no sound."""
    missing: str
    """Why there is no player."""
    heard: str | None
    figures: str
    ended: bool


@dataclass(frozen=True)
class Shelf:
    """One text with everything that was made of it."""

    item: Item
    cards: list[Card]


@dataclass(frozen=True)
class Table:
    """Figures of all systems on one set of texts."""

    title: str
    head: list[str]
    rows: list[tuple[str, list[str]]]


def render(evaluation: Evaluation) -> str:
    """The whole page."""
    page = environment(FOLDER).get_template("eval_page.html")
    return page.render(
        title=Path(str(evaluation.settings.get("model", "voice"))).name,
        verdicts=[sentence.split("**") for sentence in documents.verdicts(evaluation)],
        tables=[_table(evaluation, group) for group in evaluation.groups],
        worth=worth(evaluation),
        names=evaluation.names,
        plots=plots(evaluation),
        shelves=shelves(evaluation),
        texts=len({clip.item.key for clips in evaluation.clips.values() for clip in clips}),
        compared=bool(compared(evaluation)),
        notes=[*drifts(evaluation), *evaluation.notes],
        settings=[(key, "–" if value is None else str(value)) for key, value in evaluation.settings.items()],
        shown=documents.shown,
        style=style(),
    )


def plots(evaluation: Evaluation) -> list[tuple[str, list[Plot]]]:
    """Title of the set, and a plot of every metric over the checkpoints; nothing for fewer than two."""
    found = [(SET_TITLES[group], [_plot(evaluation, group, metric) for metric in evaluation.metrics]) for group in evaluation.groups]
    return [(title, drawn) for title, every in found if (drawn := [one for one in every if one is not None])]


def shelves(evaluation: Evaluation) -> list[Shelf]:
    """The texts on which the last trained voice did worst, then the others, as far as there is room."""
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
        shown.append(Shelf(clip.item, cards))
    return shown


def badness(clip: Scored) -> float:
    """What to listen to first: speech that did not end, then wrong words, then a voice unlike the speaker's."""
    wrong = 0.0 if clip.errors is None else clip.errors.wrong_words / max(clip.errors.words, 1)
    unlike = [1.0 - value for value in clip.likeness.values() if value is not None]
    return (0.0 if clip.ended else 10.0) + wrong + (sum(unlike) / len(unlike) if unlike else 0.0)


def _card(name: str, clip: Scored, room: int, metrics: Sequence[Metric]) -> Card:
    samples = samples_of(clip.path)
    told = [f"{metric.title} {documents.shown(value)} {metric.unit}" for metric in metrics if (value := figure(metric, [clip])) is not None]
    if not len(samples):
        return Card(name, "", "", "the model made no sound", clip.heard, " · ".join(told), clip.ended)
    player = data_uri("audio/flac", flac(Audio(samples, MASTER_RATE)))
    picture = data_uri("image/png", spectrogram(samples))
    full = len(player) > room
    return Card(
        name,
        "" if full else player,
        picture,
        f"the page has no room for more sound; the file is {clip.path}" if full else "",
        clip.heard,
        " · ".join(told),
        clip.ended,
    )


def _table(evaluation: Evaluation, group: str) -> Table:
    return Table(SET_TITLES[group], documents.columns(evaluation), documents.rows_of(evaluation, group))


def _plot(evaluation: Evaluation, group: str, metric: Metric) -> Plot | None:
    points = curve(evaluation, metric, group)
    if len(points) < 2:
        return None
    levels = {
        name: value
        for name in [RECORDINGS, *(system.name for system in evaluation.systems if system.step is None)]
        if (value := figure(metric, evaluation.of(name, group))) is not None
    }
    return plot(metric.title, metric.unit, points, levels)
