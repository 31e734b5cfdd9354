"""Doubts about whole transcripts, without a model of the sound: implausible content, times and lengths that do not fit the speech.

A user's subtitles may belong to another recording; a Whisper may not know the language. Each clip of such a text may look plausible; all of
them together do not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.clips import whole_transcript_misfit
from overtone.data_prep.clips.extraction import MeasuredClip
from overtone.data_prep.pipeline.recording_results import PreparedRecording
from overtone.data_prep.pipeline.user_notices import Notice
from overtone.data_prep.pipeline.wrong_text_detection import Doubt, find_content_doubts
from overtone.data_prep.segmentation.subtitle_sync import FEW_CUES, LEAST_CUES

MISTIMED, MISFIT, REPEATED = "mistimed_text", "misfit_text", "same_text"
"""Reasons for rejected clips."""
TOUCHED = MASTER_RATE // 20
"""Samples of speech at a break that a clip may have at its edge: cuts are in pauses, whose ends are inexact."""


@dataclass(frozen=True)
class TranscriptDoubts:
    """Doubts that follow from the texts of a dataset as a whole."""

    by_clip: dict[str, Doubt] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    """Notices on what is not trusted, what was moved, what was not checked, and what to do."""
    unchecked_lengths: frozenset[str] = frozenset()
    """Names of recordings whose texts' lengths were not compared with the speech."""
    languages: dict[str, str] = field(default_factory=dict)
    """Recording → finding about the language of its texts."""


def find_doubts(recordings: Sequence[PreparedRecording]) -> TranscriptDoubts:
    """Check the content of the texts, the times of each transcript with cues, and the lengths of all texts: per recording with at least
    20 clips, the others together per speaker and language.
    """
    content = find_content_doubts(recordings)
    doubts = dict(content.by_clip)
    notices = [*content.notices, *(_describe_delay(one) for one in recordings if one.delay)]
    mistimed = [one for one in recordings if any(not timing.is_trusted for timing in one.timings)]
    for recording in mistimed:
        doubts = _doubt_times(recording) | doubts
    for recording in recordings:
        doubts = _doubt_breaks(recording) | doubts
    if mistimed:
        text = (
            "the times of the transcript do not fit the speech: do the subtitles belong to other recordings? The clips are "
            f"{MISTIMED}, which only --preset keep-all keeps; give the right file, or use --whisper"
        )
        notices.append(Notice(text=text, recordings=_list_names(mistimed)))
    few = [one for one in mistimed if any(timing.cues < FEW_CUES and not timing.is_trusted for timing in one.timings)]
    if few:
        text = (
            f"fewer than {FEW_CUES} cues are weak evidence; if the subtitles are right, use --align MODEL or --check-with NAME, which "
            "check each clip instead"
        )
        notices.append(Notice(text=text, recordings=_list_names(few)))
    misfits, unchecked = _doubt_lengths(recordings, doubts)
    for names, found in misfits:
        doubts = found | doubts
        detail = next(iter(found.values())).detail
        text = (
            f"the texts do not fit the length of the speech ({detail}): a Whisper that does not know the language, or texts of other "
            f"recordings? The clips are {MISFIT}, which only --preset keep-all keeps; listen to some, then try a larger Whisper or the "
            "right transcripts"
        )
        notices.append(Notice(text=text, recordings=names))
    spoken = [(clip.id, _measure_speech(clip), clip.text) for one in recordings for clip in one.clips if clip.text]
    repeats = whole_transcript_misfit.find_unlikely_repeats(spoken)
    doubts = {clip: Doubt(REPEATED, "five or more clips of very different lengths have this sentence") for clip in sorted(repeats)} | doubts
    notices += _describe_unchecked([one for one in recordings if one.has_unchecked_times], unchecked)
    return TranscriptDoubts(doubts, notices, frozenset(_list_names(unchecked)), content.languages)


def _describe_unchecked(times: Sequence[PreparedRecording], lengths: Sequence[PreparedRecording]) -> list[Notice]:
    """Return notices on what was not checked: the `times` of transcripts with few cues, the `lengths` of the texts of few clips."""
    few = f"fewer than {whole_transcript_misfit.LEAST_CLIPS} clips of a second or more"
    texts = ((times, f"times not checked: fewer than {LEAST_CUES} cues"), (lengths, f"lengths of the texts not checked: {few}"))
    return [Notice(text=text, recordings=_list_names(group), is_warning=False) for group, text in texts if group]


def _doubt_times(recording: PreparedRecording) -> dict[str, Doubt]:
    """Return the doubts about the clips whose middle is in a block of cues that do not begin where speech begins, or nearest to it."""
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


def _doubt_breaks(recording: PreparedRecording) -> dict[str, Doubt]:
    """Return the doubts about the clips with speech at a break of the repaired times, whose text is not known."""
    found = {}
    for clip in recording.clips:
        after = bisect_right(recording.repair.unproven, clip.start + TOUCHED, key=lambda region: region.stop)
        if clip.text and after < len(recording.repair.unproven) and recording.repair.unproven[after].start < clip.stop - TOUCHED:
            found[clip.id] = Doubt(MISTIMED, "at a break of the transcript's times, where it is not known what is spoken")
    return found


def _doubt_lengths(
    recordings: Sequence[PreparedRecording], known: Mapping[str, Doubt]
) -> tuple[list[tuple[tuple[str, ...], dict[str, Doubt]]], list[PreparedRecording]]:
    """Return (names, doubts) of recordings whose texts do not fit, and recordings with too few clips to tell. Clips with a `known` doubt do
    not count: the wrong texts of one recording would make those of the others doubtful."""
    found: list[tuple[tuple[str, ...], dict[str, Doubt]]] = []
    small: dict[tuple[str, str], list[PreparedRecording]] = defaultdict(list)
    for recording in recordings:
        clips = [clip for clip in recording.clips if clip.text and clip.id not in known]
        if not clips:
            continue
        misfit = _measure_clips(clips)
        if misfit is None:
            small[recording.source.speaker, clips[0].language].append(recording)
        elif misfit > whole_transcript_misfit.MOST_MISFIT:
            found.append(((recording.source.name,), _doubt_misfit(clips, misfit)))
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
    """Return the seconds of speech in a clip."""
    return clip.quality.speech_share * clip.seconds


def _doubt_misfit(clips: Sequence[MeasuredClip], misfit: float) -> dict[str, Doubt]:
    most = whole_transcript_misfit.MOST_MISFIT
    detail = f"misfit of text lengths and speech {misfit:.2f} over {len(clips)} clips; at most {most:g} is expected"
    return {clip.id: Doubt(MISFIT, detail) for clip in clips}


def _describe_delay(recording: PreparedRecording) -> Notice:
    how = "late" if recording.delay > 0 else "early"
    text = (
        f"the transcript was {abs(recording.delay):.2f} s {how}: its times were moved by that much; correct the file if another program "
        "uses it"
    )
    return Notice(text=text, recordings=_list_names([recording]))


def _list_names(recordings: Sequence[PreparedRecording]) -> tuple[str, ...]:
    return tuple(one.source.name for one in recordings)
