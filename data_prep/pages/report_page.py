"""HTML page of the dataset report: self-contained, without network access, byte-identical for the same dataset.

A content security policy forbids every connection, and the template engine escapes all text.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.dataset.duration_accounting import RecordingDurations
from overtone.data_prep.pages.quality_rule_effects import (
    DEFAULT_PRESET,
    RuleFinding,
    RuleRemoval,
    build_candidate_clips,
    compute_findings,
    find_weaknesses,
    list_rules,
)
from overtone.data_prep.pages.rejection_advice import ADVICE, explain_reason
from overtone.data_prep.pages.report_charts import STEPS, Curve, Histogram, choose_ticks, make_curve, make_histogram
from overtone.data_prep.pages.report_clips import AUDIO_BYTES, ClipSelection, choose_clips, render_clips
from overtone.data_prep.pages.voice_dataset_loader import Dataset, ReportClip
from overtone.data_prep.pipeline.user_notices import format_notice
from overtone.finetune.pages.jinja_environment import format_identifier, format_number, make_environment, read_style

FOLDER = Path(__file__).parent
MOST_RECORDINGS = 2000
"""Maximum rows of the table of recordings, for the speed of the page; those with most rejected speech are shown."""
LIMITS_SHOWN = 8
TOLERANCE = 0.05
"""Seconds of allowed difference between manifests and summary, from rounding."""
QUALITY = (
    ("Signal to noise", "dB", "snr_db"),
    ("Predicted rating of the sound", "of 5", "mos_overall"),
    ("Predicted rating of the background", "of 5", "mos_background"),
    ("Quietest moments, relative to the speech", "dB", "background_db"),
    ("Loudness", "LUFS", "loudness_lufs"),
    ("Speaking rate", "characters/s", "chars_per_second"),
    ("Pitch", "Hz", "pitch_hz"),
    ("Bandwidth", "Hz", "bandwidth_hz"),
)
"""Title, unit, field of `Quality`."""


@dataclass(frozen=True)
class FunnelStep:
    """One row of the table of durations: a part of the input."""

    name: str
    description: str
    kind: str
    """CSS class: input, silence, lost or kept."""
    seconds: float
    share: float
    before: float = 0.0
    """Horizontal offset of the bar, as a share of the input."""
    count: int | None = None
    """Number of pieces."""
    advice: str = ""
    """Advice for the user."""


@dataclass(frozen=True)
class RuleView:
    """A rule in the page."""

    finding: RuleFinding
    limit: str
    curve: Curve | None
    others: list[tuple[RuleRemoval, str]]
    """Removals at other limits with their formatted values; the current limit is among them."""


@dataclass(frozen=True)
class RecordingView:
    """A row of the table of recordings. Durations in seconds, SNR in dB."""

    durations: RecordingDurations
    total: float
    kept: float
    rejected: float
    silent: float
    snr: float | None
    notes: str


def render_page(dataset: Dataset) -> str:
    """Return the report as HTML."""
    everything, rules = build_candidate_clips(dataset), list_rules(dataset)
    weakest = find_weaknesses(everything, rules)
    choice = choose_clips(dataset.kept, dataset.rejected, weakest)
    shown = render_clips(dataset.folder, choice)
    clips = (*dataset.kept, *dataset.rejected)
    script = (FOLDER / "report_page.js").read_text(encoding="utf-8")
    page = make_environment(FOLDER).get_template("report_page.html")
    return page.render(
        name=dataset.folder.resolve().name,
        summary=dataset.summary,
        format_notice=format_notice,
        warned=sum(bool(one.warning) for one in dataset.summary.sources),
        steps=make_funnel(dataset),
        drift=compute_drift(dataset),
        tolerance=TOLERANCE,
        histograms=make_histograms(dataset),
        unmeasured=[title for title, _, field in QUALITY if all(_read_measure(clip, field) is None for clip in clips)],
        rules=[_make_rule_view(finding) for finding in compute_findings(everything, rules)],
        preset=dataset.summary.settings.get("preset", DEFAULT_PRESET),
        recordings=list_recordings(dataset)[:MOST_RECORDINGS],
        speakers=_list_speakers(dataset),
        groups=_list_groups(choice),
        settings=_flatten_settings(dataset.summary.settings),
        shown=shown,
        weakest=weakest,
        silent=sum(not one.player for one in shown.values()),
        audio_megabytes=AUDIO_BYTES // 1_000_000,
        script=script,
        style=read_style(),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def make_funnel(dataset: Dataset) -> list[FunnelStep]:
    """Return the durations of the input, non-speech, each rejection reason and the kept clips; the parts add up to the input.

    A piece that fails several rules counts for the first of them.
    """
    summary = dataset.summary
    lost: dict[str, list[ReportClip]] = defaultdict(list)
    for clip in dataset.rejected:
        lost[clip.reasons[0]].append(clip)
    losses = sorted(lost.items(), key=lambda item: (-_sum_seconds(item[1]), item[0]))
    whole = summary.input_seconds or 1.0
    steps = [
        FunnelStep(
            name="input",
            description="all decodable audio",
            kind="input",
            seconds=summary.input_seconds,
            share=1.0,
            count=summary.recordings,
        )
    ]
    silence = summary.non_speech_seconds
    left = summary.input_seconds - silence
    steps.append(
        FunnelStep(
            name="no speech",
            description="pauses and other audio without speech",
            kind="silence",
            seconds=silence,
            share=silence / whole,
            before=left / whole,
        )
    )
    for reason, clips in losses:
        seconds = _sum_seconds(clips)
        left -= seconds
        steps.append(
            FunnelStep(
                name=reason,
                description=explain_reason(reason) or clips[0].detail,
                advice=ADVICE.get(reason, ""),
                kind="lost",
                seconds=seconds,
                share=seconds / whole,
                before=max(left, 0.0) / whole,
                count=len(clips),
            )
        )
    seconds = _sum_seconds(dataset.kept)
    return [
        *steps,
        FunnelStep(
            name="kept",
            description="training and validation clips",
            kind="kept",
            seconds=seconds,
            share=seconds / whole,
            count=len(dataset.kept),
        ),
    ]


def compute_drift(dataset: Dataset) -> float:
    """Return the seconds of input missing from the manifests: non-zero if they were changed after the summary was written."""
    return dataset.summary.input_seconds - dataset.summary.non_speech_seconds - _sum_seconds(dataset.kept) - _sum_seconds(dataset.rejected)


def make_histograms(dataset: Dataset) -> list[Histogram]:
    """Return a histogram of each measure that at least one clip has."""
    kept, lost = dataset.kept, [clip for clip in dataset.rejected if clip.quality is not None]
    drawn = [make_histogram("Duration", "s", [clip.seconds for clip in kept], [clip.seconds for clip in lost])]
    for title, unit, field in QUALITY:
        drawn.append(
            make_histogram(title, unit, [_read_measure(clip, field) for clip in kept], [_read_measure(clip, field) for clip in lost])
        )
    return [one for one in drawn if one is not None]


def list_recordings(dataset: Dataset) -> list[RecordingView]:
    """Return all recordings, sorted by rejected duration, longest first."""
    by_source: dict[str, list[ReportClip]] = defaultdict(list)
    for clip in (*dataset.kept, *dataset.rejected):
        by_source[clip.source].append(clip)
    views = [_make_recording_view(account, by_source[account.source]) for account in dataset.summary.sources]
    return sorted(views, key=lambda view: (-view.rejected, view.durations.source))


def _list_groups(choice: ClipSelection) -> list[tuple[str, str, str, list[ReportClip]]]:
    """Return (HTML anchor, title, description, clips) of each group."""
    return [
        ("worst", "Weakest clips that were kept", "Start here: errors in these clips are in the training data.", choice.worst),
        ("nearest", "Rejected clips nearest to being kept", "If these sound good, a limit is too strict.", choice.nearest),
        ("best", "Best clips", "Reference for the others.", choice.best),
    ]


def _make_rule_view(finding: RuleFinding) -> RuleView:
    limit = format_number(finding.limit)
    if not finding.varies:
        return RuleView(finding, limit, None, [])
    low, high = finding.reach
    limits = np.linspace(low, high, STEPS)
    drawn = make_curve(
        limits, np.array([finding.compute_removal(float(one)).seconds for one in limits]), finding.limit, finding.now.seconds
    )
    others = {format_number(float(one)): float(one) for one in choose_ticks(low, high, LIMITS_SHOWN)} | {limit: finding.limit}
    return RuleView(
        finding, limit, drawn, [(finding.compute_removal(value), text) for text, value in sorted(others.items(), key=lambda item: item[1])]
    )


def _make_recording_view(account: RecordingDurations, clips: Sequence[ReportClip]) -> RecordingView:
    total, kept, rejected, silent = (part / MASTER_RATE for part in (account.total, account.kept, account.rejected, account.non_speech))
    snr = [value for clip in clips if (value := _read_measure(clip, "snr_db")) is not None]
    return RecordingView(
        durations=account,
        total=total,
        kept=kept,
        rejected=rejected,
        silent=silent,
        snr=float(np.median(snr)) if snr else None,
        notes=_describe_recording(account, clips),
    )


def _describe_recording(account: RecordingDurations, clips: Sequence[ReportClip]) -> str:
    """Return the notes on a recording: why all of it was rejected, else its most frequent rejection reasons and its warnings."""
    whole = [clip for clip in clips if clip.stage == "recording"]
    if whole:
        why = format_identifier(whole[0].reasons[0])
        return "; ".join(filter(None, [f"{why}: {whole[0].detail}" if whole[0].detail else why, account.warning]))
    reasons = Counter(reason for clip in clips for reason in clip.reasons)
    losses = ", ".join(
        f"{format_identifier(reason)} ({count})" for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:3]
    )
    return "; ".join(part for part in (account.warning, losses) if part)


def _list_speakers(dataset: Dataset) -> list[tuple[str, float, int, str]]:
    """Return (name, kept seconds, number of clips, languages) of each speaker."""
    groups: dict[str, list[ReportClip]] = defaultdict(list)
    for clip in dataset.kept:
        groups[clip.speaker].append(clip)
    rows = [(name, _sum_seconds(clips), len(clips), ", ".join(sorted({clip.language for clip in clips}))) for name, clips in groups.items()]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def _flatten_settings(value: dict[str, object], above: str = "") -> list[tuple[str, str]]:
    """Return the nested settings as flat pairs: `lengths target` → `6.0`."""
    flat: list[tuple[str, str]] = []
    for key, one in value.items():
        flat += _flatten_settings(one, f"{above}{key} ") if isinstance(one, dict) else [(f"{above}{key}", "–" if one is None else str(one))]
    return flat


def _read_measure(clip: ReportClip, field: str) -> float | None:
    return getattr(clip.quality, field, None)


def _sum_seconds(clips: Sequence[ReportClip]) -> float:
    return sum(clip.seconds for clip in clips)
