"""Describes how the texts of each recording were verified."""

from __future__ import annotations

from dataclasses import dataclass

from overtone.data_prep.clips.extraction import MeasuredClip
from overtone.data_prep.pipeline.recording_results import PreparedRecording
from overtone.data_prep.pipeline.transcript_plausibility import TranscriptDoubts
from overtone.finetune.errors import format_count


@dataclass(frozen=True)
class TextChecks:
    """Names of the models of a run that write or check texts; None: there is none."""

    whisper: str | None = None
    """Model that wrote the texts."""
    aligner: str | None = None
    """Model that aligned each clip with its text."""
    check: str | None = None
    """Model that transcribed each clip for comparison."""


def describe_texts(recording: PreparedRecording, checks: TextChecks, doubts: TranscriptDoubts) -> str:
    """Return a description of the source of a recording's texts and their verification; "" if it was rejected as a whole."""
    clips = [clip for clip in recording.clips if clip.text and clip.audio]
    if recording.refused:
        return ""
    parts = [f"transcribed by {checks.whisper}" if checks.whisper else "transcript"]
    if checks.aligner:
        parts.append(f"aligned with the sound by {checks.aligner}{_count_measured(clips, 'alignment_score')}")
    if checks.check:
        parts.append(f"compared with what {checks.check} transcribes{_count_measured(clips, 'check_wer')}")
    weak = ["times"] * bool(recording.timings) + ["lengths"] * (recording.source.name not in doubts.unchecked_lengths)
    parts += [f"{' and '.join(weak)} checked against the speech"] if weak else []
    parts += filter(None, [doubts.languages.get(recording.source.name)])
    if not checks.aligner and not checks.check and not checks.whisper:
        parts.append("words not checked")
    return "; ".join(parts)


def _count_measured(clips: list[MeasuredClip], measure: str) -> str:
    missing = sum(getattr(clip.quality, measure) is None for clip in clips)
    return f" (not {format_count(missing, 'clip')} of {len(clips)})" if missing else ""
