"""Selection of clips: quality rules, removal of duplicates, and review decisions.

It works on stored measures and transcribes nothing: another preset, other limits or new decisions take seconds, not hours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.encoding_info import read_encoding
from overtone.data_prep.audio.waveform import MASTER_RATE, read_audio_unchanged
from overtone.data_prep.clips import duplicates, quality_rules, speaker_similarity
from overtone.data_prep.clips.extraction import MeasuredClip
from overtone.data_prep.clips.fingerprint_matching import FingerprintedClip
from overtone.data_prep.clips.quality_rules import Candidate, Rule, RuleInput
from overtone.data_prep.clips.review_decisions import Decision
from overtone.data_prep.clips.speaking_rate import measure_speaking_rate
from overtone.data_prep.manifest import ManifestRow, Reject
from overtone.data_prep.pipeline import transcript_plausibility
from overtone.data_prep.pipeline.recording_results import PreparedRecording
from overtone.data_prep.pipeline.transcript_plausibility import TranscriptDoubts
from overtone.data_prep.pipeline.wrong_text_detection import Doubt
from overtone.data_prep.segmentation.clip_segmentation import Lengths
from overtone.data_prep.speakers.voice_changes import assess_clip, label_windows
from overtone.data_prep.speakers.voice_clusters import VoiceCount

REVIEWED = "review"
"""Reason for clips rejected in review."""
DUPLICATE = "duplicate"
BEST_SNR_DB = 40.0
LOSSLESS_DB = 6.0
UNCLIPPED_SPREAD, MOST_CLIPPING_DB = 1.15, 30.0
"""`Quality.peak_spread` (median over clips) from which speech is not clipped, and the penalty in dB of a spread of 1. Measured on telephone
prompts of two speakers: 1.24 and 1.26 as they are, 1.04 and 1.26 amplified by 6 dB and clipped, 1.00 by 12 dB."""
WHISPER_MEASURES = (
    "avg_logprob",
    "compression_ratio",
    "no_speech_prob",
    "text_complete",
    "language_prob",
    "repeated_share",
    "outside_speech_share",
    "asr_error",
    "alignment_score",
    "unaligned_words",
    "check_wer",
)
"""Measures of the text that was transcribed or aligned, meaningless for a corrected text."""


@dataclass(frozen=True)
class SelectionCriteria:
    """Rules, length limits and review decisions that select clips."""

    rules: tuple[Rule, ...]
    lengths: Lengths
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    """Decision by clip id."""
    trusts_texts: bool = False
    """True if clips are kept despite doubts about whole transcripts, as with --preset keep-all."""
    diarize: bool = False
    """True if each clip gets its speaker from its voice."""
    voices: VoiceCount | None = None
    """Number of voices, with `diarize`; None: unknown."""


class JudgedClip(NamedTuple):
    """A clip with its rejection reasons; without reasons it is kept."""

    recording: PreparedRecording
    clip: MeasuredClip
    reasons: tuple[str, ...]
    detail: str | None = None
    take: str | None = None
    """Id that clips with the same sound share; None: no other clip has it."""
    speaker: str = ""
    """Speaker of the clip: that of the recording, or a voice of `--diarize`."""
    voice: int | None = None
    """Number of its voice among those of the recordings' speaker, 0 with the most speech; None: unknown."""


class _AssignedClip(NamedTuple):
    recording: PreparedRecording
    clip: MeasuredClip
    speaker: str
    voice: int | None


def judge_clips(
    recordings: list[PreparedRecording], standard: SelectionCriteria, out: Path, doubts: TranscriptDoubts | None = None
) -> list[JudgedClip]:
    """Apply rules and decisions to all clips, then reject duplicates among those kept. `out`: folder of the clips; `doubts`: see
    `apply_rules`."""
    judged = apply_rules(recordings, standard, doubts)
    kept = [one for one in judged if not one.reasons]
    qualities = {one.source.digest: _rate_recording(one) for one in recordings}
    compared = []
    for one in kept:
        clip, digest = one.clip, one.recording.source.digest
        sound = FingerprintedClip(clip.id, digest, clip.start, clip.stop, np.frombuffer(clip.fingerprint, "<u4"))
        compared.append(duplicates.DuplicateCandidate(sound, clip.text, qualities[digest]))
    wanted = frozenset(identity for identity, decision in standard.decisions.items() if decision.action == "keep")
    paths = {one.clip.id: out / one.clip.audio for one in kept if one.clip.audio}
    found = duplicates.find_duplicates(compared, lambda identity: read_audio_unchanged(paths[identity]).samples, wanted)
    names = {one.clip.id: one.recording.source.name for one in kept}
    return [
        one._replace(reasons=(DUPLICATE,), detail=f"the same sound as {other} of {names[other]}, which is kept")
        if (other := found.kept.get(one.clip.id))
        else one._replace(take=found.takes.get(one.clip.id))
        for one in judged
    ]


def _rate_recording(recording: PreparedRecording) -> float:
    """Return the quality of a recording in decibels, to choose between copies: bandwidth, signal-to-noise ratio, clipping and encoding.

    An octave of bandwidth counts like 12 dB of signal-to-noise ratio. Above 40 dB that ratio is meaningless, because codecs write digital
    silence. Clipping counts up to 30 dB, because it adds overtones that look like bandwidth. A lossless file is worth 6 dB, an octave of
    bit rate 1 dB.
    """
    clips = [clip.quality for clip in recording.clips if clip.text]
    if not clips:
        return 0.0
    bandwidth = float(np.median([one.bandwidth_hz or 0.0 for one in clips]))
    ratio = float(np.median([BEST_SNR_DB if one.snr_db is None else min(one.snr_db, BEST_SNR_DB) for one in clips]))
    spread = float(np.median([UNCLIPPED_SPREAD if one.peak_spread is None else one.peak_spread for one in clips]))
    clipping = MOST_CLIPPING_DB * float(np.clip((UNCLIPPED_SPREAD - spread) / (UNCLIPPED_SPREAD - 1), 0, 1))
    stored = read_encoding(recording.source.path, recording.total / MASTER_RATE)
    encoded = LOSSLESS_DB if stored.lossless else min(np.log2(max(stored.kilobits, 1.0)) - 8, 0.0)
    return float(12 * np.log2(max(bandwidth, 500.0) / 4000) + ratio - clipping + encoded)


def apply_rules(
    recordings: list[PreparedRecording], standard: SelectionCriteria, doubts: TranscriptDoubts | None = None
) -> list[JudgedClip]:
    """Apply rules and decisions to all clips, in the order of their recordings and positions. `doubts`: of these recordings, if they are
    known already; they read every letter of the texts."""
    clips = [
        (recording, _apply_corrected_text(clip, standard.decisions.get(clip.id))) for recording in recordings for clip in recording.clips
    ]
    assigned = _add_speaker_cosines(_assign_voices(clips, standard.diarize, standard.voices))
    measured = [RuleInput(one.speaker, one.clip.seconds, one.clip.text, one.clip.language, one.clip.quality) for one in assigned]
    candidates = quality_rules.build_candidates(measured, standard.lengths)
    by_clip = {} if standard.trusts_texts else (doubts or transcript_plausibility.find_doubts(recordings)).by_clip
    return [_judge_clip(one, seen, standard, by_clip.get(one.clip.id)) for one, seen in zip(assigned, candidates, strict=True)]


def describe_voices(judged: list[JudgedClip]) -> list[str]:
    """Return one line for each speaker whose clips hold several voices: shares of the speech, and a clip of each voice."""
    groups: dict[str, dict[int, list[JudgedClip]]] = defaultdict(lambda: defaultdict(list))
    for one in judged:
        if one.voice is not None and one.clip.audio:
            groups[one.recording.source.speaker][one.voice].append(one)
    lines = []
    for speaker, voices in sorted(groups.items()):
        total = sum(one.clip.seconds for own in voices.values() for one in own)
        shown = [
            f"{sum(one.clip.seconds for one in own) / total:.0%} sound like {max(own, key=lambda one: one.clip.seconds).clip.audio}"
            for _, own in sorted(voices.items())
        ]
        if len(voices) > 1:
            lines.append(f"speaker {speaker} has {len(voices)} voices: {', '.join(shown)}")
    return lines


def make_rows(judged: list[JudgedClip]) -> list[ManifestRow]:
    """Return the manifest rows of the kept clips, not yet split."""
    return [
        ManifestRow(audio=one.clip.audio, duration=round(one.clip.seconds, 6), **_make_fields(one))
        for one in judged
        if one.clip.audio and not one.reasons
    ]


def make_rejects(judged: list[JudgedClip], recordings: list[PreparedRecording]) -> list[Reject]:
    """Return the rows of rejects.jsonl: rejected clips, and recordings rejected as a whole."""
    clips = [
        Reject(stage="clip", reasons=list(one.reasons), detail=one.detail, audio=one.clip.audio, **_make_fields(one))
        for one in judged
        if one.reasons
    ]
    return [*clips, *(_reject_recording(recording) for recording in recordings if recording.refused)]


def find_stale_decisions(recordings: list[PreparedRecording], decisions: Mapping[str, Decision]) -> list[str]:
    """Return the ids of decisions whose clip no longer exists: the recording was removed or is cut differently."""
    return sorted(decisions.keys() - {clip.id for recording in recordings for clip in recording.clips if clip.audio})


def _judge_clip(one: _AssignedClip, candidate: Candidate, standard: SelectionCriteria, doubt: Doubt | None) -> JudgedClip:
    """Return the clip with the reasons of rules and doubts, unless a person decided. A text that a person wrote is not doubted."""
    accepted = JudgedClip(one.recording, one.clip, (), speaker=one.speaker, voice=one.voice)
    decision = standard.decisions.get(one.clip.id)
    if decision is not None and decision.action == "reject":
        return accepted._replace(reasons=(REVIEWED,))
    if decision is not None and decision.action == "keep" and one.clip.audio:
        return accepted
    reasons = tuple(quality_rules.find_failures(candidate, standard.rules))
    if doubt is None or not one.clip.text or (decision is not None and decision.text is not None):
        return accepted._replace(reasons=reasons)
    return accepted._replace(reasons=(*reasons, doubt.reason), detail=doubt.detail)


def _apply_corrected_text(clip: MeasuredClip, decision: Decision | None) -> MeasuredClip:
    """Return the clip with the corrected text of its decision, if any. A piece without a transcript has no audio file and stays as it
    is."""
    if decision is None or decision.text is None or clip.audio is None:
        return clip
    pace = measure_speaking_rate(decision.text, clip.quality.speech_share * clip.seconds, clip.language)
    changes = {"chars_per_second": pace, **dict.fromkeys(WHISPER_MEASURES)}
    return clip.model_copy(update={"text": decision.text, "quality": clip.quality.model_copy(update=changes)})


def _assign_voices(clips: list[tuple[PreparedRecording, MeasuredClip]], diarize: bool, count: VoiceCount | None) -> list[_AssignedClip]:
    """Return the clips with their voices, where these are known, and their speakers.

    Voices are distinguished among all recordings of a speaker, with `diarize` among all recordings. A recording with several voices that
    include the speaker's most frequent one is a conversation, so its clips of other voices are no clips of the speaker. A recording that
    holds only another voice may be the same person in another room, so it gets a warning (`describe_voices`), not a rejection.
    """
    groups: dict[str, dict[str, PreparedRecording]] = defaultdict(dict)
    for recording, _ in clips:
        groups["" if diarize else recording.source.speaker][recording.source.name] = recording
    labels: dict[str, NDArray[np.int64]] = {}
    for own in groups.values():
        labels |= label_windows({name: recording.windows for name, recording in own.items()}, count)
    assigned = []
    for recording, clip in clips:
        of_all = labels[recording.source.name]
        found = assess_clip(recording.windows, of_all, clip.start, clip.stop)
        if found is None:
            assigned.append(_AssignedClip(recording, clip, recording.source.speaker, None))
            continue
        speaker = f"speaker_{found.voice + 1}" if diarize else recording.source.speaker
        changes: dict[str, object] = {"other_voice_share": found.other_share}
        if not diarize and found.voice and 0 in of_all:
            changes["is_speaker"] = False
        measured = clip.model_copy(update={"quality": clip.quality.model_copy(update=changes)})
        assigned.append(_AssignedClip(recording, measured, speaker, found.voice))
    return assigned


def _add_speaker_cosines(clips: list[_AssignedClip]) -> list[_AssignedClip]:
    """Return the clips with their speaker similarity, where it is known."""
    vectors = ((one.speaker, one.clip.id, one.recording.voices[one.clip.id]) for one in clips if one.clip.id in one.recording.voices)
    cosines = speaker_similarity.compute_speaker_cosines(vectors)
    return [
        one._replace(
            clip=one.clip.model_copy(update={"quality": one.clip.quality.model_copy(update={"speaker_cos": cosines.get(one.clip.id)})})
        )
        for one in clips
    ]


def _make_fields(judged: JudgedClip) -> dict[str, Any]:
    """Return the fields that rows and rejects share."""
    source, clip = judged.recording.source, judged.clip
    return {
        "id": clip.id,
        "text": clip.text or None,
        "speaker": judged.speaker or source.speaker,
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
