"""Table of `voice --dry-run`: how many clips each quality rule would remove, and how many each preset keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from math import isfinite
from pathlib import Path

from overtone.data_prep.clips.quality_rules import KEEP_ALL, Rule, make_presets
from overtone.data_prep.pipeline import clip_selection
from overtone.data_prep.pipeline.clip_selection import JudgedClip, SelectionCriteria
from overtone.data_prep.pipeline.recording_results import PreparedRecording
from overtone.data_prep.pipeline.transcript_plausibility import TranscriptDoubts

HEADER = f"{'rule':<22}{'removes':>8}{'time':>10}{'alone':>8}{'time':>10}  limit"


def format_removals(
    recordings: list[PreparedRecording],
    preset: str,
    standard: SelectionCriteria,
    out: Path,
    least_sure: float | None = None,
    doubts: TranscriptDoubts | None = None,
) -> str:
    """Return one line per rule of the preset: clips that fail it, and clips that fail only it. Then one line per preset: clips kept.
    `standard`: criteria of the run, with the rules of that preset; `out`: folder of the clips; `doubts`: see
    `clip_selection.apply_rules`."""
    every = make_presets(least_sure)
    judged = clip_selection.judge_clips(recordings, standard, out, doubts)
    lines = [HEADER, *(_format_line(rule.reason, judged, format_limit(rule)) for rule in every[preset])]
    lines += [
        _format_line(reason, judged, "")
        for reason in sorted({reason for one in judged for reason in one.reasons} - {rule.reason for rule in every[preset]})
    ]
    for name, rules in every.items():
        criteria = replace(standard, rules=rules, trusts_texts=name == KEEP_ALL)
        kept = [one for one in clip_selection.judge_clips(recordings, criteria, out, doubts) if not one.reasons]
        lines.append(f"--preset {name:<9} keeps {len(kept)} of {len(judged)} clips, {_format_time(kept)} of {_format_time(judged)}")
    return "\n".join(lines)


def format_limit(rule: Rule) -> str:
    """Return the description, limits and unit of a rule: `low signal-to-noise ratio (from 15; dB)`."""
    ends = [f"from {rule.least:g}"] * isfinite(rule.least) + [f"to {rule.most:g}"] * isfinite(rule.most)
    return f"{rule.description} ({' '.join(ends)}; {rule.unit})"


def _format_line(reason: str, judged: list[JudgedClip], description: str) -> str:
    failing = [one for one in judged if reason in one.reasons]
    alone = [one for one in failing if len(one.reasons) == 1]
    return f"{reason:<22}{len(failing):>8}{_format_time(failing):>10}{len(alone):>8}{_format_time(alone):>10}  {description}".rstrip()


def _format_time(judged: Iterable[JudgedClip]) -> str:
    return str(timedelta(seconds=round(sum(one.clip.seconds for one in judged))))
