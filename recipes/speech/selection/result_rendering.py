"""A decision as JSON, as a table for the terminal, and as a plot."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from overtone.finetune.pages.jinja_environment import format_number
from overtone.recipes.speech.evaluation.confidence_intervals import Array, Interval
from overtone.recipes.speech.selection.candidate_ranking import (
    ENDINGS,
    PACE,
    SIMILARITY,
    WER,
    Ranking,
    SelectionDecision,
    values_of,
)
from overtone.recipes.speech.selection.candidates import VoiceCandidate
from overtone.version import __version__

METHOD = (
    "cost = sum over the measures of weight × loss; losses: WER, 1 − similarity, |ln pace| (at most 1), share of bad endings. 95 % "
    "intervals of differences: inverted sign-flip tests over the texts, whose ends are values of subsets (Hartigan 1969); all pairs of "
    "candidates share the 5 % equally (Dunn 1961). Tied: the interval of the cost minus that of the best does not exclude zero. Front: no "
    "candidate of lower cost is clearly better by one measure and clearly worse by none. Chosen: of the tied ones on the front, the "
    "smallest strength, then the earliest step; with too few texts for a verdict, the lowest cost."
)
TITLES = {WER: "WER %", SIMILARITY: "similarity", PACE: "pace", ENDINGS: "bad endings %"}
SCALE = {WER: 100.0, SIMILARITY: 1.0, PACE: 1.0, ENDINGS: 100.0}
CAUTION = (
    "The figures of the chosen one are slightly too good, since it was chosen by them; for a report, measure the export with "
    "`overtone eval-voice` on other texts."
)


@dataclass(frozen=True)
class SelectionResult:
    """Everything that the result files show."""

    candidates: Mapping[str, VoiceCandidate]
    decision: SelectionDecision
    recordings: Array | None
    """Sums [measures, 2] of the recordings of the same texts; None if there are none."""
    notes: Sequence[str]
    settings: Mapping[str, object]

    @property
    def chosen(self) -> VoiceCandidate:
        return self.candidates[self.decision.chosen]

    @property
    def recorded_values(self) -> dict[str, float | None]:
        """Measure → value of the recordings."""
        if self.recordings is None:
            return {}
        return {name: None if value != value else float(value) for name, value in zip(TITLES, values_of(self.recordings), strict=True)}


def explain_choice(decision: SelectionDecision) -> str:
    """Return why this candidate, in one sentence."""
    by_name = {one.name: one for one in decision.rankings}
    chosen = by_name[decision.chosen]
    cost = f"cost {chosen.cost:.3f}"
    if len(decision.rankings) == 1:
        return f"{chosen.name} ({cost}) is the only candidate"
    if not decision.has_verdicts:
        return f"{chosen.name} has the lowest cost of {len(decision.rankings)} candidates ({cost}); the texts are too few for a verdict"
    others = [name for name in decision.tied if name != decision.best]
    if not others:
        return f"{chosen.name} is the best of {len(decision.rankings)} candidates ({cost}); all others are clearly worse"
    tie = f"a tie of {len(decision.tied)} of {len(decision.rankings)} candidates"
    if decision.chosen == decision.best:
        return f"{tie}: {chosen.name} has the lowest cost ({cost}) and is the simplest of them (smallest strength, then earliest step)"
    against = chosen.against_best
    return (
        f"{tie}: {decision.best} has the lowest cost, but not clearly ({format_change(against)} for {chosen.name}); of those on the front, "
        f"{chosen.name} has the smallest strength, then the earliest step"
    )


def format_change(change: Interval) -> str:
    interval = "too few texts for an interval" if change.low is None else f"95 % interval {change.low:+.3f} to {change.high:+.3f}"
    return f"{change.value:+.3f}, {interval}"


def format_value(measure: str, value: float | None) -> str:
    """A value in the unit of the column; a dash if no clip has it."""
    return "–" if value is None else format_number(SCALE[measure] * value)


def describe_verdict(one: Ranking, decision: SelectionDecision) -> str:
    """Describe a candidate by its difference from the best one."""
    found = one.against_best
    words = ["lowest cost"]
    if one.name != decision.best and found.low is None:
        words = [f"{found.value:+.3f} (too few texts)"]
    elif one.name != decision.best:
        words = [f"{'tied' if one.tied else 'worse'}, {found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"]
    return ", ".join([*words, *(["chosen"] if one.name == decision.chosen else [])])


def table_head() -> list[str]:
    """Titles over the cells of `table_rows`."""
    return ["", "candidate", *TITLES.values(), "cost", "front", "against the lowest cost"]


def table_rows(result: SelectionResult) -> list[list[str]]:
    """The recordings, then the candidates by cost, as text."""
    decision, rows = result.decision, list[list[str]]()
    if result.recordings is not None:
        shown = [format_value(measure, value) for measure, value in result.recorded_values.items()]
        rows.append(["", "real recordings", *shown, "", "", ""])
    for one in decision.rankings:
        mark = "*" if one.name == decision.chosen else "=" if one.tied else ""
        figures = [format_value(measure, one.values[measure]) for measure in TITLES]
        front = "front" if one.dominated_by is None else ""
        rows.append([mark, one.name, *figures, f"{one.cost:.3f}", front, describe_verdict(one, decision)])
    return rows


def render_table(result: SelectionResult) -> str:
    """The table for a terminal. `*`: chosen; `=`: tied with the best."""
    cells = [table_head(), *table_rows(result)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)


def render_report(result: SelectionResult) -> str:
    """The table, the notes and the reason, for a terminal."""
    notes = [f"note: {note}" for note in [*result.notes, CAUTION]]
    return "\n".join([render_table(result), *notes, f"selected: {explain_choice(result.decision)}"])


def build_record(result: SelectionResult) -> dict[str, object]:
    """Everything for selection.json, besides the choice."""
    rows = []
    for one in result.decision.rankings:
        candidate = result.candidates[one.name]
        rows.append(
            {
                "name": one.name,
                "step": candidate.step,
                "strength": candidate.strength,
                "values": dict(one.values),
                "cost": one.cost,
                "against_best": dataclasses.asdict(one.against_best),
                "tied": one.tied,
                "dominated_by": one.dominated_by,
                "clips": f"candidates/{candidate.slug}",
            }
        )
    return {
        "overtone": __version__,
        "method": METHOD,
        "best": result.decision.best,
        "tied": result.decision.tied,
        "front": result.decision.front,
        "recordings": result.recorded_values,
        "candidates": rows,
        "notes": [*result.notes],
        "settings": dict(result.settings),
    }


def draw_plot(result: SelectionResult) -> bytes:
    """PNG: similarity over WER of all candidates; the front is connected, the chosen one marked by a star."""
    figure = Figure(figsize=(8, 5.6), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="WER (%)", ylabel="speaker similarity (cosine)", title="Candidates: the best are at the upper left")
    points = {one.name: (one.values[WER], one.values[SIMILARITY]) for one in result.decision.rankings}
    drawn = {name: (wer, near) for name, (wer, near) in points.items() if wer is not None and near is not None}
    strengths = sorted({result.candidates[name].strength for name in drawn})
    for name, (wer, near) in drawn.items():
        candidate, color = result.candidates[name], f"C{strengths.index(result.candidates[name].strength)}"
        axes.plot([100 * wer], [near], "o", color=color, alpha=0.8)
        axes.annotate(f"{candidate.step}", (100 * wer, near), xytext=(4, 4), textcoords="offset points", fontsize=8)
    front = sorted((100 * wer, near) for name, (wer, near) in drawn.items() if name in result.decision.front)
    axes.plot([x for x, _ in front], [y for _, y in front], ":", color="gray", label="front")
    if result.decision.chosen in drawn:
        wer, near = drawn[result.decision.chosen]
        axes.plot([100 * wer], [near], "*", color="black", markersize=16, label="chosen")
    for at, strength in enumerate(strengths):
        axes.plot([], [], "o", color=f"C{at}", label=f"strength {strength:g}")
    real = result.recorded_values
    if (wrong := real.get(WER)) is not None and (same := real.get(SIMILARITY)) is not None:
        axes.plot([100 * wrong], [same], "D", color="gray", label="real recordings")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()
