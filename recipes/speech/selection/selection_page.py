"""A selection as one HTML page with players, which needs no other file, no network and no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from overtone.data_prep.pages.report_clips import AUDIO_BYTES, make_data_uri
from overtone.finetune.pages.jinja_environment import make_environment, read_style
from overtone.recipes.speech.evaluation import results_page
from overtone.recipes.speech.evaluation.evaluation_items import Item, pick_evenly
from overtone.recipes.speech.evaluation.metric_aggregation import PACE, WER, similarity_metric
from overtone.recipes.speech.evaluation.results_page import TextClips, make_card
from overtone.recipes.speech.evaluation.systems import RECORDINGS
from overtone.recipes.speech.selection import result_rendering
from overtone.recipes.speech.selection.candidate_measures import ComparedClip
from overtone.recipes.speech.selection.result_rendering import SelectionResult

TEMPLATE = Path(__file__).with_name("selection_page.html")
SHOWN_TEXTS, SHOWN_CANDIDATES = 8, 4
"""Texts with players, and candidates beside the recordings. All clips are in the folder beside the page."""


@dataclass(frozen=True)
class ListedText:
    """A text with players, and the kind that it was chosen for."""

    text: TextClips
    kind: str


def render_page(result: SelectionResult, clips: Mapping[str, Sequence[ComparedClip]], kinds: Mapping[str, str], run: str) -> str:
    """The whole page. `clips`: name of a candidate, or of the recordings → its clips. `kinds`: key of a text → its kind."""
    template = make_environment(TEMPLATE.parent, results_page.TEMPLATE.parent).get_template(TEMPLATE.name)
    return template.render(
        title=run,
        reason=result_rendering.explain_choice(result.decision),
        head=result_rendering.table_head(),
        rows=result_rendering.table_rows(result),
        method=result_rendering.METHOD,
        caution=result_rendering.CAUTION,
        plot=make_data_uri("image/png", result_rendering.draw_plot(result)),
        texts=list_texts(result, clips, kinds),
        all_texts=len(kinds),
        notes=result.notes,
        settings=[(key, "–" if value is None else str(value)) for key, value in result.settings.items()],
        style=read_style(),
    )


def list_texts(result: SelectionResult, clips: Mapping[str, Sequence[ComparedClip]], kinds: Mapping[str, str]) -> list[ListedText]:
    """The texts with players: some of each kind, spoken by the chosen candidate, the best one, and others of the front."""
    names = [result.decision.chosen, result.decision.best, *result.decision.front]
    shown = [name for name in (RECORDINGS, *list(dict.fromkeys(names))[:SHOWN_CANDIDATES]) if name in clips]
    by_key = {name: {clip.scored.item.key: clip for clip in clips[name]} for name in shown}
    items = [clip.scored.item for clip in clips[result.decision.chosen]]
    chosen = choose_keys(items, kinds)
    listed, room = [], AUDIO_BYTES
    for item in (one for one in items if one.key in chosen):
        cards = []
        for name in shown:
            if (own := by_key[name].get(item.key)) is not None:
                metrics = [WER, similarity_metric(next(iter(own.scored.similarities))), PACE]
                cards.append(make_card(name, own.scored, room, metrics))
                room -= len(cards[-1].player)
        listed.append(ListedText(TextClips(item, cards), kinds[item.key]))
    return listed


def choose_keys(items: Sequence[Item], kinds: Mapping[str, str]) -> set[str]:
    """Choose at most `SHOWN_TEXTS` keys: the first of each kind, and others at equal distances."""
    first = {kind: item.key for item in reversed(items) for kind in [kinds[item.key]]}
    others = [item.key for item in items if item.key not in first.values()]
    return {*first.values(), *pick_evenly(others, max(SHOWN_TEXTS - len(first), 0))}
