"""Doubts about whole transcripts, without a model of any language: times that do not fit the speech, lengths that do not fit it.

A user's subtitles may belong to another recording; a Whisper may not know the language. Each clip of such a text may look plausible; all of
them together do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from data_prep.clips import whole_transcript_misfit
from data_prep.clips.extraction import MeasuredClip
from data_prep.pipeline.recording_results import PreparedRecording
from data_prep.segmentation.subtitle_sync import FEW_CUES, LEAST_CUES

MISTIMED, MISFIT, REPEATED = "mistimed_text", "misfit_text", "same_text"
"""Reasons for rejected clips."""
SHOWN = 3


class Doubt(NamedTuple):
    """Why the text of a clip is not trusted."""

    reason: str
    detail: str


@dataclass(frozen=True)
class TranscriptDoubts:
    """What the texts of a dataset as a whole say about themselves."""

    by_clip: dict[str, Doubt] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    """For the terminal: what is not trusted, what was moved, and what to do."""
    note: str = ""
    """What was not checked."""


def find_doubts(recordings: Sequence[PreparedRecording]) -> TranscriptDoubts:
    """Check the times of each transcript with cues, and the lengths of all texts: per recording with at least 20 clips, the others together
    per speaker and language.
    """
    doubts: dict[str, Doubt] = {}
    warnings = [_describe_delay(one) for one in recordings if one.delay]
    mistimed = [one for one in recordings if any(not timing.is_trusted for timing in one.timings)]
    for recording in mistimed:
        doubts |= _doubt_times(recording)
    if mistimed:
        warnings.append(
            f"the times of {_list_names(mistimed)} do not fit the speech: do the subtitles belong to other recordings? Their clips are "
            f"{MISTIMED}, which only --preset keep-all keeps; give the right file, or use --whisper"
        )
    few = [one for one in mistimed if any(timing.cues < FEW_CUES and not timing.is_trusted for timing in one.timings)]
    if few:
        warnings.append(
            f"{_list_names(few)}: fewer than {FEW_CUES} cues are weak evidence; if the subtitles are right, use --align MODEL or "
            "--check-with NAME, which check each clip instead"
        )
    misfits, unchecked = _doubt_lengths(recordings, doubts)
    for names, found in misfits:
        doubts = found | doubts
        detail = next(iter(found.values())).detail
        warnings.append(
            f"the texts of {names} do not fit the length of the speech ({detail}): a Whisper that does not know the language, or texts of "
            f"other recordings? Their clips are {MISFIT}, which only --preset keep-all keeps; listen to some, then try a larger Whisper or "
            "the right transcripts"
        )
    spoken = [(clip.id, _measure_speech(clip), clip.text) for one in recordings for clip in one.clips if clip.text]
    repeats = whole_transcript_misfit.find_unlikely_repeats(spoken)
    doubts = {clip: Doubt(REPEATED, "five or more clips of very different lengths have this sentence") for clip in sorted(repeats)} | doubts
    return TranscriptDoubts(doubts, warnings, _describe_unchecked([one for one in recordings if one.has_unchecked_times], unchecked))


def _describe_unchecked(times: Sequence[PreparedRecording], lengths: Sequence[PreparedRecording]) -> str:
    """What was not checked: the `times` of transcripts with few cues, the `lengths` of the texts of few clips. "" if everything was."""
    parts = [f"the times of {_list_names(times)} (fewer than {LEAST_CUES} cues)"] if times else []
    if lengths:
        few = f"fewer than {whole_transcript_misfit.LEAST_CLIPS} clips of a second or more"
        parts.append(f"the lengths of the texts of {_list_names(lengths)} ({few})")
    return f"not checked: {'; '.join(parts)}" if parts else ""


def _doubt_times(recording: PreparedRecording) -> dict[str, Doubt]:
    """Doubts about the clips whose middle is in a block of cues that do not begin where speech begins, or nearest to it."""
    found = {}
    for clip in recording.clips:
        middle = (clip.start + clip.stop) // 2
        timing = min(recording.timings, key=lambda one: max(one.start - middle, middle - one.stop, 0))
        if not timing.is_trusted and clip.text:
            detail = (
                f"the starts of {timing.cues} cues correlate with the starts of speech by {timing.correlation:.2f}; at least "
                f"{timing.least_correlation:g} is expected"
            )
            found[clip.id] = Doubt(MISTIMED, detail)
    return found


def _doubt_lengths(
    recordings: Sequence[PreparedRecording], known: Mapping[str, Doubt]
) -> tuple[list[tuple[str, dict[str, Doubt]]], list[PreparedRecording]]:
    """(names, doubts) of recordings whose texts do not fit, and recordings with too few clips to tell. Clips with a `known` doubt do not
    count: the wrong texts of one recording would make those of the others doubtful."""
    found: list[tuple[str, dict[str, Doubt]]] = []
    small: dict[tuple[str, str], list[PreparedRecording]] = defaultdict(list)
    for recording in recordings:
        clips = [clip for clip in recording.clips if clip.text and clip.id not in known]
        if not clips:
            continue
        misfit = _measure_clips(clips)
        if misfit is None:
            small[recording.source.speaker, clips[0].language].append(recording)
        elif misfit > whole_transcript_misfit.MOST_MISFIT:
            found.append((recording.source.name, _doubt_misfit(clips, misfit)))
    unchecked = []
    for group in small.values():
        clips = [clip for one in group for clip in one.clips if clip.text and clip.id not in known]
        misfit = _measure_clips(clips)
        if misfit is None:
            unchecked += group
        elif misfit > whole_transcript_misfit.MOST_MISFIT:
            found.append((_list_names(group), _doubt_misfit(clips, misfit)))
    return found, unchecked


def _measure_clips(clips: Sequence[MeasuredClip]) -> float | None:
    return whole_transcript_misfit.measure_misfit([(_measure_speech(clip), clip.text) for clip in clips])


def _measure_speech(clip: MeasuredClip) -> float:
    """Seconds of speech in a clip."""
    return clip.quality.speech_share * clip.seconds


def _doubt_misfit(clips: Sequence[MeasuredClip], misfit: float) -> dict[str, Doubt]:
    most = whole_transcript_misfit.MOST_MISFIT
    detail = f"misfit of text lengths and speech {misfit:.2f} over {len(clips)} clips; at most {most:g} is expected"
    return {clip.id: Doubt(MISFIT, detail) for clip in clips}


def _describe_delay(recording: PreparedRecording) -> str:
    how = "late" if recording.delay > 0 else "early"
    return (
        f"the transcript of {recording.source.name} was {abs(recording.delay):.2f} s {how}: its times were moved by that much; "
        "correct the file if another program uses it"
    )


def _list_names(recordings: Sequence[PreparedRecording]) -> str:
    names = [one.source.name for one in recordings]
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
