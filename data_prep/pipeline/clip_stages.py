"""The stages after speech detection, for one part of a recording or a short one: get the text, cut and measure clips. Optional: embed
speakers, rate the sound, align the texts with the sound, check them with a Whisper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from pydantic import Base64Bytes, TypeAdapter

from overtone.data_prep.alignment import clip_alignment, recording_alignment
from overtone.data_prep.alignment.interface import TextAlignment
from overtone.data_prep.alignment.recording_alignment import DividedText
from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.clips import dnsmos, extraction, speaker_similarity
from overtone.data_prep.clips.dnsmos import SoundRatings
from overtone.data_prep.clips.extraction import MeasuredClip, RecordingLevels
from overtone.data_prep.pipeline.lazy_audio import LazyAudio, PartAudio
from overtone.data_prep.pipeline.recording_results import PreparedPart, TimedText
from overtone.data_prep.pipeline.recording_run import RecordingRun
from overtone.data_prep.pipeline.stage_cache import make_key
from overtone.data_prep.pipeline.worker_activity import format_time, report_activity
from overtone.data_prep.segmentation import vad
from overtone.data_prep.segmentation.clip_segmentation import TextUnit
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.speakers.voice_changes import find_voice_changes
from overtone.data_prep.speakers.windowed_speaker_vectors import (
    StoredVoiceWindows,
    VoiceWindows,
    describe_windows,
    embed_windows,
    read_windows,
)
from overtone.data_prep.transcription import whisper_engine, word_errors
from overtone.data_prep.transcription.packed_transcription import WhisperSettings

FORM = 1
"""Version of the results of the slow stages: increase it when their results change. The cutting stage uses its code digest."""
UNITS: TypeAdapter[list[TextUnit]] = TypeAdapter(list[TextUnit])
CLIPS: TypeAdapter[list[MeasuredClip]] = TypeAdapter(list[MeasuredClip])
DIVIDED: TypeAdapter[DividedText] = TypeAdapter(DividedText)
WINDOWS: TypeAdapter[StoredVoiceWindows] = TypeAdapter(StoredVoiceWindows)
RATINGS: TypeAdapter[dict[str, SoundRatings]] = TypeAdapter(dict[str, SoundRatings])
ALIGNMENTS: TypeAdapter[dict[str, TextAlignment]] = TypeAdapter(dict[str, TextAlignment])
VOICES: TypeAdapter[dict[str, bytes]] = TypeAdapter(dict[str, Base64Bytes])


@dataclass(frozen=True)
class RecordingPart:
    """Input of the stages after speech detection: a whole recording, or a part of a long one. Positions are relative to its start."""

    sound: LazyAudio | PartAudio
    place: Region
    """Place in the recording."""
    is_whole: bool
    """True if this is all of the recording."""
    levels: RecordingLevels | None
    """Levels of the whole recording; None: to be measured when clips are written, or not known yet."""
    text: TimedText
    """Text of the user's transcript."""
    regions: list[Region]
    """Regions of speech."""

    def describe_place(self) -> dict[str, list[int]]:
        """Return the cache key inputs of a part of a recording; none for a whole one."""
        return {} if self.is_whole else {"part": list(self.place)}


def make_clips(run: RecordingRun, part: RecordingPart) -> PreparedPart:
    """Return the clips of a part, with the results of the checks."""
    transcript, job, language = run.transcript, run.job, run.language
    units = list(part.text.units) if transcript is not None else transcribe_part(run, part, job.whisper_settings)
    windows = embed_part_windows(run, part)
    changes = find_voice_changes(windows, part.regions, job.most_voices)
    units, ends = _divide_at_changes(run, part, units, changes)
    inputs = {
        "speech": run.speech_key,
        "units": make_key({"units": [unit.model_dump() for unit in units]}),
        "aligned_ends": ends,
        "whole": run.has_one_text,
        "words": bool(transcript and transcript.words),
        "lengths": vars(job.lengths),
        "language": language,
        "voice_changes": changes,
        "code": extraction.compute_code_digests(),
        **part.describe_place(),
    }

    def cut() -> list[MeasuredClip]:
        master, regions = part.sound.master, part.regions
        levels = part.levels or extraction.measure_levels(master, regions)
        pieces = extraction.divide_recording(transcript, units, regions, master, job.lengths, changes, ends)
        return extraction.write_clips(job.out, run.source, pieces, regions, master, language, levels, part.place.start)

    made, key = run.stages.run("clips", inputs, CLIPS, cut, extraction.make_existence_check(job.out)), make_key(inputs)
    checked = _check_texts(run, part, _rate_clips(run, key, _align_clips(run, key, made)))
    windows = windows.move(part.place.start)
    return PreparedPart(checked, _embed_clips(run, key, made, windows), windows)


def _divide_at_changes(
    run: RecordingRun, part: RecordingPart, units: list[TextUnit], changes: list[int]
) -> tuple[list[TextUnit], tuple[int, ...] | None]:
    """Return the units, in which utterances that span a change of the voice are divided into words, and `TimedText.ends` of these units."""
    aligner, ends = run.job.aligner, part.text.ends
    if aligner is None or ends is None or not changes:
        return units, ends
    inputs = {
        "form": FORM,
        "speech": run.speech_key,
        "units": make_key({"units": [unit.model_dump() for unit in units]}),
        "ends": ends,
        "changes": changes,
        "aligner": aligner.digest,
        "code": recording_alignment.compute_code_digest(),
        **part.describe_place(),
    }

    def divide() -> DividedText:
        return recording_alignment.divide_at_changes(run.models.aligner, part.sound.speech_audio, units, ends, changes)

    found = run.stages.run("divided_at_voices", inputs, DIVIDED, divide)
    return found.units, tuple(found.ends)


def transcribe_part(run: RecordingRun, part: RecordingPart, settings: WhisperSettings | None) -> list[TextUnit]:
    """Return the text by the Whisper with these settings, with positions relative to the part."""
    assert settings is not None  # without them, a recording without a transcript was refused before
    longest = settings.get("longest_window")
    inputs = {"form": FORM, "speech": run.speech_key, "hearing": settings, **part.describe_place()}

    def transcribe() -> list[TextUnit]:
        windows = vad.make_windows(part.regions, part.sound.master, longest)
        step = "transcribing" if part.is_whole else f"transcribing the part from {format_time(part.place.start / MASTER_RATE)}"
        report = partial(report_activity, step)
        return whisper_engine.transcribe_recording(
            run.models.whisper, part.sound.speech_audio, windows, run.job.language, longest, report, settings.get("beams")
        )

    return run.stages.run(
        "words",
        inputs,
        UNITS,
        transcribe,
        lambda units: not any(unit.error for unit in units),  # windows that Whisper failed on are retried
    )


def _embed_clips(
    run: RecordingRun, clips_key: str, made: list[MeasuredClip], windows: VoiceWindows
) -> dict[str, speaker_similarity.Vector]:
    """Return the speaker vector [H] of each clip file by id; {} without a speaker check. It is the mean over the clip's `windows` (of the
    recording), so no speech passes the encoder twice; only a clip without one, whose words are too short for a window, is encoded itself.

    `clips_key`: digest of the inputs of the clips, also below.
    """
    job = run.job
    if job.encoder is None:
        return {}
    means = {clip.id: windows.average(clip.start, clip.stop) for clip in made if clip.audio}
    found = {identity: mean for identity, mean in means.items() if mean is not None}
    paths = {clip.id: job.out / clip.audio for clip in made if clip.audio and clip.id not in found}
    if not paths:
        return found
    inputs = {
        "form": FORM,
        "clips": clips_key,
        "encoder": job.encoder.digest,
        "without_windows": sorted(paths),
        "products": "fp32",
    }  # older results used TF32 on a GPU
    encoded = run.stages.run("voices", inputs, VOICES, lambda: speaker_similarity.embed_clips(run.models.encoder, paths))
    return found | {identity: np.frombuffer(vector, "<f4") for identity, vector in encoded.items()}


def embed_part_windows(run: RecordingRun, part: RecordingPart) -> VoiceWindows:
    """Return the speaker vectors of the windows of a part, relative to its start; none without a speaker check."""
    if run.job.encoder is None:
        return VoiceWindows()
    inputs = {
        "speech": run.speech_key,
        "encoder": run.job.encoder.digest,
        "windows": describe_windows(),
        **part.describe_place(),
    }

    def embed() -> StoredVoiceWindows:
        return embed_windows(run.models.encoder, part.sound.master, part.sound.speech_audio, part.regions)

    return read_windows(run.stages.run("voice_windows", inputs, WINDOWS, embed))


def _align_clips(run: RecordingRun, clips_key: str, made: list[MeasuredClip]) -> list[MeasuredClip]:
    """Return the clips with their alignment scores; unchanged without an aligner."""
    job = run.job
    if job.aligner is None:
        return made
    inputs = {"form": FORM, "clips": clips_key, "aligner": job.aligner.digest}
    clips = {clip.id: (job.out / clip.audio, clip.text) for clip in made if clip.audio}
    found = run.stages.run("alignment", inputs, ALIGNMENTS, lambda: clip_alignment.align_clips(run.models.aligner, clips))
    return [
        _add_measures(clip, {"alignment_score": one.score, "unaligned_words": one.unknown}) if (one := found.get(clip.id)) else clip
        for clip in made
    ]


def _rate_clips(run: RecordingRun, clips_key: str, made: list[MeasuredClip]) -> list[MeasuredClip]:
    """Return the clips with ratings of their files' sound; unchanged without a scorer."""
    job = run.job
    if job.scorer is None:
        return made
    paths = {clip.id: job.out / clip.audio for clip in made if clip.audio}
    inputs = {"form": FORM, "clips": clips_key, "networks": job.scorer.digest}
    found = run.stages.run("sound_quality", inputs, RATINGS, lambda: dnsmos.rate_clips(run.models.scorer, paths))
    return [_add_measures(clip, found[clip.id].model_dump()) if clip.id in found else clip for clip in made]


def _check_texts(run: RecordingRun, part: RecordingPart, made: list[MeasuredClip]) -> list[MeasuredClip]:
    """Return the clips with the word error rate between their text and a transcript by Whisper; unchanged if that is not requested."""
    if run.job.check_settings is None:
        return made
    transcribed, begin = transcribe_part(run, part, run.job.check_settings), part.place.start
    rates = {
        clip.id: word_errors.measure_clip_errors(clip.text, clip.start - begin, clip.stop - begin, transcribed, clip.language)
        for clip in made
        if clip.audio
    }
    return [_add_measures(clip, {"check_wer": rate}) if (rate := rates.get(clip.id)) is not None else clip for clip in made]


def _add_measures(clip: MeasuredClip, measures: Mapping[str, float | None]) -> MeasuredClip:
    return clip.model_copy(update={"quality": clip.quality.model_copy(update=dict(measures))})
