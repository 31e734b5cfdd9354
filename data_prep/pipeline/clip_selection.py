"""Selection of clips: quality rules, removal of duplicates, and review decisions.

It works on stored measures and transcribes nothing: another preset, other limits or new decisions take seconds, not hours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from data_prep.audio.waveform import MASTER_RATE, Samples
from data_prep.clips import duplicates, quality_rules, speaker_similarity
from data_prep.clips.extraction import MeasuredClip
from data_prep.clips.quality_rules import Candidate, Rule, RuleInput
from data_prep.clips.review_decisions import Decision
from data_prep.manifest import ManifestRow, Reject
from data_prep.pipeline.one_recording import PreparedRecording
from data_prep.segmentation.segment import Lengths

REVIEWED = "review"
"""Reason for clips rejected in review."""
DUPLICATE = "duplicate"
WHISPER_MEASURES = (
    "avg_logprob",
    "compression_ratio",
    "no_speech_prob",
    "text_complete",
    "language_prob",
    "repeated_share",
    "outside_speech_share",
    "asr_error",
)
"""Measures of a Whisper transcript, meaningless for a corrected text."""


@dataclass(frozen=True)
class SelectionCriteria:
    """Rules, length limits and review decisions that select clips."""

    rules: tuple[Rule, ...]
    lengths: Lengths
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    """Decision by clip id."""


class JudgedClip(NamedTuple):
    """A clip with its rejection reasons; without reasons it is kept."""

    recording: PreparedRecording
    clip: MeasuredClip
    reasons: tuple[str, ...]
    detail: str | None = None


def judge_clips(
    recordings: list[PreparedRecording], standard: SelectionCriteria, samples: Callable[[MeasuredClip], Samples]
) -> list[JudgedClip]:
    """Apply rules and decisions to all clips, then reject duplicates among those kept. `samples`: reads the samples of a clip's file."""
    judged = apply_rules(recordings, standard)
    kept = {one.clip.id: one.clip for one in judged if not one.reasons}
    compared = [duplicates.DuplicateCandidate(clip.id, clip.text, clip.stop - clip.start) for clip in kept.values()]
    doubles = duplicates.find_duplicates(compared, lambda identity: samples(kept[identity]))
    wanted = {identity for identity, decision in standard.decisions.items() if decision.action == "keep"}
    return [
        one._replace(reasons=(DUPLICATE,), detail=f"says the same as {doubles[one.clip.id]}")
        if one.clip.id in doubles and one.clip.id not in wanted
        else one
        for one in judged
    ]


def apply_rules(recordings: list[PreparedRecording], standard: SelectionCriteria) -> list[JudgedClip]:
    """Apply rules and decisions to all clips, in the order of their recordings and positions."""
    clips = [
        (recording, _apply_corrected_text(clip, standard.decisions.get(clip.id))) for recording in recordings for clip in recording.clips
    ]
    clips = _add_speaker_cosines(clips)
    measured = [RuleInput(one.source.speaker, clip.seconds, clip.text, clip.language, clip.quality) for one, clip in clips]
    candidates = quality_rules.build_candidates(measured, standard.lengths)
    return [JudgedClip(one, clip, _find_reasons(seen, clip, standard)) for (one, clip), seen in zip(clips, candidates, strict=True)]


def make_rows(judged: list[JudgedClip]) -> list[ManifestRow]:
    """Manifest rows of the kept clips, not yet split."""
    return [
        ManifestRow(audio=one.clip.audio, duration=round(one.clip.seconds, 6), **_make_fields(one))
        for one in judged
        if one.clip.audio and not one.reasons
    ]


def make_rejects(judged: list[JudgedClip], recordings: list[PreparedRecording]) -> list[Reject]:
    """Rows of rejects.jsonl: rejected clips, and recordings rejected as a whole."""
    clips = [
        Reject(stage="clip", reasons=list(one.reasons), detail=one.detail, audio=one.clip.audio, **_make_fields(one))
        for one in judged
        if one.reasons
    ]
    return [*clips, *(_reject_recording(recording) for recording in recordings if recording.refused)]


def find_stale_decisions(recordings: list[PreparedRecording], decisions: Mapping[str, Decision]) -> list[str]:
    """Ids of decisions whose clip no longer exists: the recording was removed or is cut differently."""
    return sorted(decisions.keys() - {clip.id for recording in recordings for clip in recording.clips if clip.audio})


def _find_reasons(candidate: Candidate, clip: MeasuredClip, standard: SelectionCriteria) -> tuple[str, ...]:
    decision = standard.decisions.get(clip.id)
    if decision is not None and decision.action == "reject":
        return (REVIEWED,)
    if decision is not None and decision.action == "keep" and clip.audio:
        return ()
    return tuple(quality_rules.find_failures(candidate, standard.rules))


def _apply_corrected_text(clip: MeasuredClip, decision: Decision | None) -> MeasuredClip:
    """The clip with the corrected text of its decision, if any. A piece without a transcript has no audio file and stays as it is."""
    if decision is None or decision.text is None or clip.audio is None:
        return clip
    speech = max(clip.quality.speech_share * clip.seconds, 0.01)
    changes = {"chars_per_second": round(len(decision.text) / speech, 2), **dict.fromkeys(WHISPER_MEASURES)}
    return clip.model_copy(update={"text": decision.text, "quality": clip.quality.model_copy(update=changes)})


def _add_speaker_cosines(clips: list[tuple[PreparedRecording, MeasuredClip]]) -> list[tuple[PreparedRecording, MeasuredClip]]:
    """The clips with their speaker similarity, where it is known."""
    vectors = ((one.source.speaker, clip.id, one.voices[clip.id]) for one, clip in clips if clip.id in one.voices)
    cosines = speaker_similarity.compute_speaker_cosines(vectors)
    return [
        (one, clip.model_copy(update={"quality": clip.quality.model_copy(update={"speaker_cos": cosines.get(clip.id)})}))
        for one, clip in clips
    ]


def _make_fields(judged: JudgedClip) -> dict[str, Any]:
    """Fields that rows and rejects share."""
    source, clip = judged.recording.source, judged.clip
    return {
        "id": clip.id,
        "text": clip.text or None,
        "speaker": source.speaker,
        "language": clip.language,
        "quality": clip.quality,
        "gain_db": clip.gain_db,
        "source": source.name,
        "start": round(clip.start / MASTER_RATE, 6),
        "end": round(clip.stop / MASTER_RATE, 6),
    }


def _reject_recording(recording: PreparedRecording) -> Reject:
    end = recording.regions[-1].stop if recording.regions else 0
    return Reject(
        source=recording.source.name,
        end=round(end / MASTER_RATE, 6),
        stage="recording",
        reasons=[recording.refused],
        detail=recording.detail,
        speaker=recording.source.speaker,
    )
