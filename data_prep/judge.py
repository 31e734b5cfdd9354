"""Which clips of a data set are kept: rules over what was measured, no clip twice, and the word of a person who listened.

Nothing is heard again: another preset, other limits or new decisions cost seconds, not hours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from data_prep import duplicates, score, voices
from data_prep.audio import MASTER_RATE, Samples
from data_prep.clips import Clip
from data_prep.decisions import Decision
from data_prep.manifest import Reject, Row
from data_prep.recording import Recording
from data_prep.score import Candidate, Measured, Rule
from data_prep.segment import Lengths

REVIEWED = "review"
"""The reason of what a person rejected."""
DOUBLE = "duplicate"
HEARD = (
    "avg_logprob",
    "compression_ratio",
    "no_speech_prob",
    "text_complete",
    "language_prob",
    "repeated_share",
    "outside_speech_share",
    "asr_error",
)
"""Measures of what Whisper heard: they say nothing about a text that a person wrote."""


@dataclass(frozen=True)
class Standard:
    """By what clips are judged."""

    rules: tuple[Rule, ...]
    lengths: Lengths
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    """By id of the clip."""


class Judged(NamedTuple):
    """A clip with every reason against it; none: it is kept."""

    recording: Recording
    clip: Clip
    reasons: tuple[str, ...]
    detail: str | None = None


def judge(recordings: list[Recording], standard: Standard, samples: Callable[[Clip], Samples]) -> list[Judged]:
    """All clips by rules and decisions; of those that would be kept, what another one says already is not. `samples`: of a clip's file."""
    judged = by_rules(recordings, standard)
    kept = {one.clip.id: one.clip for one in judged if not one.reasons}
    compared = [duplicates.Clip(clip.id, clip.text, clip.stop - clip.start) for clip in kept.values()]
    doubles = duplicates.find(compared, lambda identity: samples(kept[identity]))
    wanted = {identity for identity, decision in standard.decisions.items() if decision.action == "keep"}
    return [
        one._replace(reasons=(DOUBLE,), detail=f"says the same as {doubles[one.clip.id]}")
        if one.clip.id in doubles and one.clip.id not in wanted
        else one
        for one in judged
    ]


def by_rules(recordings: list[Recording], standard: Standard) -> list[Judged]:
    """All clips, in order of their recordings and their places in them."""
    clips = [(recording, _corrected(clip, standard.decisions.get(clip.id))) for recording in recordings for clip in recording.clips]
    clips = _likened(clips)
    measured = [Measured(one.source.speaker, clip.seconds, clip.text, clip.language, clip.quality) for one, clip in clips]
    candidates = score.candidates(measured, standard.lengths)
    return [Judged(one, clip, _reasons(seen, clip, standard)) for (one, clip), seen in zip(clips, candidates, strict=True)]


def kept(judged: list[Judged]) -> list[Row]:
    """The rows of a manifest, not yet split."""
    return [
        Row(audio=one.clip.audio, duration=round(one.clip.seconds, 6), **_fields(one))
        for one in judged
        if one.clip.audio and not one.reasons
    ]


def rejected(judged: list[Judged], recordings: list[Recording]) -> list[Reject]:
    """Clips that fail, and recordings that were refused."""
    clips = [
        Reject(stage="clip", reasons=list(one.reasons), detail=one.detail, audio=one.clip.audio, **_fields(one))
        for one in judged
        if one.reasons
    ]
    return [*clips, *(_whole(recording) for recording in recordings if recording.refused)]


def without_clip(recordings: list[Recording], decisions: Mapping[str, Decision]) -> list[str]:
    """Decisions about clips that are not there: the recording went, or is cut otherwise now."""
    return sorted(decisions.keys() - {clip.id for recording in recordings for clip in recording.clips if clip.audio})


def _reasons(candidate: Candidate, clip: Clip, standard: Standard) -> tuple[str, ...]:
    decision = standard.decisions.get(clip.id)
    if decision is not None and decision.action == "reject":
        return (REVIEWED,)
    if decision is not None and decision.action == "keep" and clip.audio:
        return ()
    return tuple(score.failures(candidate, standard.rules))


def _corrected(clip: Clip, decision: Decision | None) -> Clip:
    """With the text that a person wrote, if there is one. A piece that nobody heard words in has no sound that could be kept."""
    if decision is None or decision.text is None or clip.audio is None:
        return clip
    speech = max(clip.quality.speech_share * clip.seconds, 0.01)
    changes = {"chars_per_second": round(len(decision.text) / speech, 2), **dict.fromkeys(HEARD)}
    return clip.model_copy(update={"text": decision.text, "quality": clip.quality.model_copy(update=changes)})


def _likened(clips: list[tuple[Recording, Clip]]) -> list[tuple[Recording, Clip]]:
    """With the cosine to their speaker's voice, where that is known."""
    vectors = ((one.source.speaker, clip.id, one.voices[clip.id]) for one, clip in clips if clip.id in one.voices)
    cosines = voices.likeness(vectors)
    return [
        (one, clip.model_copy(update={"quality": clip.quality.model_copy(update={"speaker_cos": cosines.get(clip.id)})}))
        for one, clip in clips
    ]


def _fields(judged: Judged) -> dict[str, Any]:
    """What rows and rejects have in common."""
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


def _whole(recording: Recording) -> Reject:
    end = recording.regions[-1].stop if recording.regions else 0
    return Reject(
        source=recording.source.name,
        end=round(end / MASTER_RATE, 6),
        stage="recording",
        reasons=[recording.refused],
        detail=recording.detail,
        speaker=recording.source.speaker,
    )
