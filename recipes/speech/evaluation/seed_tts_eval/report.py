"""The report of Seed-TTS-eval: the protocol's figures, all that they depend on, what is missing, and own figures under their own names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from overtone.recipes.speech.evaluation.metric_aggregation import ScoredClip, all_metrics, metric_value
from overtone.recipes.speech.evaluation.result_rendering import format_value
from overtone.recipes.speech.evaluation.seed_tts_eval.average_similarity import AverageSimilarity, average_similarity
from overtone.recipes.speech.evaluation.seed_tts_eval.word_error_rate import UtteranceErrors, average_rate
from overtone.version import __version__

NAME = "seed-tts-eval"


@dataclass(frozen=True)
class ProtocolScores:
    """The figures of one system."""

    errors: Mapping[str, UtteranceErrors]
    """Name of the utterance → its word errors; empty if no recognizer was used."""
    similarities: Mapping[str, float]
    """Cosine to the prompt, by name of the utterance; empty if no similarity model was used."""
    missing: Mapping[str, str]
    """Name of an utterance without a score → what is missing. The public scripts skip these silently."""
    own: Sequence[ScoredClip] = ()
    """The same clips with the measures of `eval-voice`."""
    dnsmos: Mapping[str, float] = field(default_factory=dict)
    """Mean rating by name; empty if it was not measured."""

    @property
    def wer(self) -> float | None:
        """Word error rate in percent."""
        return average_rate(list(self.errors.values()))

    @property
    def similarity(self) -> AverageSimilarity | None:
        return average_similarity(list(self.similarities.values()))


@dataclass(frozen=True)
class ProtocolReport:
    """The content of the result files."""

    utterances: int
    """Number of utterances in the prompts file."""
    scores: Mapping[str, ProtocolScores]
    """Name of the system → its scores."""
    encoders: Sequence[str]
    """Encoders of our own figures."""
    differences: Sequence[str]
    """Differences from the protocol; figures are comparable with those of papers if it is empty."""
    settings: Mapping[str, JsonValue]
    """Recognizer, similarity model, prompts, sampling, seed, versions."""


def build_record(report: ProtocolReport) -> dict[str, JsonValue]:
    """All results, for JSON. Unknown values are None."""
    return {
        "protocol": NAME,
        "overtone": __version__,
        "comparable": not report.differences,
        "differences": list(report.differences),
        "settings": dict(report.settings),
        "utterances": report.utterances,
        "systems": {name: _describe(scores, report.encoders) for name, scores in report.scores.items()},
    }


def render_markdown(report: ProtocolReport) -> str:
    """Markdown: the protocol's table, what differs from it, what is missing, and own figures."""
    comparable = "\n".join(f"- {line}" for line in report.differences) or "Nothing: the figures can be compared with those of papers."
    parts = [
        "# Seed-TTS-eval",
        _table(
            ["", "WER (%)", "SIM", "utterances", "missing"],
            [
                [
                    name,
                    format_exact(scores.wer),
                    format_exact(None if scores.similarity is None else scores.similarity.mean),
                    str(report.utterances),
                    str(len(scores.missing)),
                ]
                for name, scores in report.scores.items()
            ],
        ),
        "WER: mean of the rates of the utterances. SIM: mean cosine to the prompt. Both as the public scripts print them.",
        f"## What differs from the protocol\n\n{comparable}",
        *(_list_missing(name, scores) for name, scores in report.scores.items() if scores.missing),
        "## Settings\n\n" + "\n".join(f"- {name}: {value}" for name, value in report.settings.items()),
        _own_table(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def format_exact(value: float | None) -> str:
    """A figure with all digits that the protocol has; a dash for an unknown one."""
    return "–" if value is None else str(value)


def _list_missing(name: str, scores: ProtocolScores) -> str:
    listed = "\n".join(f"- {utterance}: {what}" for utterance, what in scores.missing.items())
    return f"## Missing: {name}\n\nThe public scripts skip these utterances without a message.\n\n{listed}"


def _own_table(report: ProtocolReport) -> str:
    """Figures by the definitions of `eval-voice`; empty if nothing was measured."""
    every = [clip for scores in report.scores.values() for clip in scores.own]
    metrics = [metric for metric in all_metrics(report.encoders) if metric_value(metric, every) is not None]
    names = sorted({name for scores in report.scores.values() for name in scores.dnsmos})
    if not metrics and not names:
        return ""
    rows = [
        [
            name,
            *(format_value(metric_value(metric, scores.own)) for metric in metrics),
            *(format_value(scores.dnsmos.get(one)) for one in names),
        ]
        for name, scores in report.scores.items()
    ]
    head = ["", *(f"{metric.title} ({metric.unit})" for metric in metrics), *(f"DNSMOS {name}" for name in names)]
    return "## Overtone's own figures for the same clips\n\nThey have other definitions (docs/evaluation.md).\n\n" + _table(head, rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in [head, ["---"] * len(head), *rows])


def _describe(scores: ProtocolScores, encoders: Sequence[str]) -> dict[str, JsonValue]:
    similarity = scores.similarity
    return {
        "wer_percent": scores.wer,
        "sim": None if similarity is None else similarity.mean,
        "sim_variance": None if similarity is None else similarity.variance,
        "scored": {"wer": len(scores.errors), "sim": len(scores.similarities)},
        "missing": dict(scores.missing),
        "own": {metric.key: value for metric in all_metrics(encoders) if (value := metric_value(metric, scores.own)) is not None},
        "dnsmos": dict(scores.dnsmos),
        "per_utterance": {
            name: {
                "wer": scores.errors[name].rate if name in scores.errors else None,
                "transcript": scores.errors[name].transcript if name in scores.errors else None,
                "sim": scores.similarities.get(name),
            }
            for name in sorted({*scores.errors, *scores.similarities})
        },
    }
