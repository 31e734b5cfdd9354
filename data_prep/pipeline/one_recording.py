"""Pipeline for one recording, in stages with stored results: detect speech, get the text, cut and measure clips, embed speakers (optional).

Every piece with text becomes a clip file. Selection happens later, so rules and review decisions may change without transcribing again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Base64Bytes, BaseModel, ConfigDict, TypeAdapter

from data_prep.audio.reader import AudioError
from data_prep.audio.waveform import MASTER_RATE, Track
from data_prep.audio_codecs.interface import SpeakerEncoder
from data_prep.clips import extraction, speaker_similarity
from data_prep.clips.extraction import MeasuredClip
from data_prep.manifest import AUTO
from data_prep.pipeline.stage_cache import NotStoredError, Stages, StoredStages, make_key
from data_prep.pipeline.worker_models import LazyAudio, Models
from data_prep.recordings.recording_files import RecordingSource
from data_prep.recordings.user_transcripts import UserTranscript
from data_prep.segmentation import vad
from data_prep.segmentation.segment import Lengths, TextUnit
from data_prep.segmentation.vad import Region
from data_prep.transcription import whisper_engine

FORM = 1
"""Version of the results of the two slow stages: increase it when their results change. The cutting stage uses its code digest."""
OF_THE_MACHINE = ("decoder_crashed", "decoder_stalled")
"""Reasons that may be caused by the machine and are not stored."""


@dataclass(frozen=True)
class Job:
    """Settings of a run, the same for all recordings."""

    out: Path
    lengths: Lengths
    language: str | None
    """Full name, or None: Whisper detects it, a transcript leaves it open."""
    whisper_settings: dict[str, Any] | None
    """`whisper_engine.describe_settings`, or None with transcripts."""
    encoder: SpeakerEncoder | None = None
    """Of the speaker check, if there is to be one."""


class DetectedSpeech(BaseModel):
    """Result of the speech detection stage for a usable recording."""

    model_config = ConfigDict(frozen=True)

    track: Track
    regions: list[Region]


class UnusableRecording(BaseModel):
    """Result of the speech detection stage for an unusable recording, with the reason."""

    model_config = ConfigDict(frozen=True)

    reason: str
    detail: str
    seconds: float


@dataclass(frozen=True)
class PreparedRecording:
    """Result of all stages for one recording."""

    source: RecordingSource
    total: int
    """Samples at `MASTER_RATE`; 0: unknown."""
    regions: tuple[Region, ...] = ()
    """Speech regions; `clips` cover all of them unless the recording is rejected."""
    clips: tuple[MeasuredClip, ...] = ()
    warning: str = ""
    refused: str = ""
    """Reason if the recording is rejected as a whole; otherwise empty."""
    detail: str = ""
    """Details of `refused`."""
    voices: Mapping[str, speaker_similarity.Vector] = field(default_factory=dict, compare=False)
    """Speaker embedding by clip id; empty without a speaker check."""


SPEECH: TypeAdapter[DetectedSpeech | UnusableRecording] = TypeAdapter(DetectedSpeech | UnusableRecording)
UNITS: TypeAdapter[list[TextUnit]] = TypeAdapter(list[TextUnit])
CLIPS: TypeAdapter[list[MeasuredClip]] = TypeAdapter(list[MeasuredClip])
VOICES: TypeAdapter[dict[str, bytes]] = TypeAdapter(dict[str, Base64Bytes])


def prepare_recording(
    source: RecordingSource, transcript: UserTranscript | None, job: Job, stages: Stages, models: Models
) -> PreparedRecording:
    """Run all stages. Without a transcript, Whisper transcribes; if Whisper is disabled, the recording is rejected.

    A decoder that crashed or stalled may be the machine's fault, so that result is not stored and the next run tries again.
    """
    if source.problem:
        return refuse_recording(source, "unreadable", source.problem, 0)
    sound = LazyAudio(source.path, models)
    try:
        speech = stages.run("speech", make_speech_inputs(source), SPEECH, lambda: detect_speech(sound, models))
        if isinstance(speech, UnusableRecording):
            return refuse_recording(source, speech.reason, speech.detail, round(speech.seconds * MASTER_RATE))
        return _cut_clips(source, transcript, speech, sound, job, stages, models)
    except AudioError as error:
        return refuse_recording(source, error.reason, error.detail, round(error.seconds * MASTER_RATE))


def refuse_recording(source: RecordingSource, reason: str, detail: str, total: int) -> PreparedRecording:
    """A recording rejected as a whole, with all its `total` samples."""
    return PreparedRecording(source, total, (Region(0, total),), refused=reason, detail=detail)


def load_stored_speech(source: RecordingSource, stages: StoredStages) -> DetectedSpeech | UnusableRecording | None:
    """Stored result of the speech detection stage, or None."""
    try:
        return stages.run("speech", make_speech_inputs(source), SPEECH, lambda: UnusableRecording(reason="", detail="", seconds=0.0))
    except NotStoredError:
        return None


def make_speech_inputs(source: RecordingSource) -> dict[str, Any]:
    """Cache key inputs of the speech detection stage."""
    return {"form": FORM, "recording": source.digest, "vad": vad.describe_settings()}


def detect_speech(sound: LazyAudio, models: Models) -> DetectedSpeech | UnusableRecording:
    """Decode, check that the audio is usable, detect speech."""
    try:
        return DetectedSpeech(track=sound.track, regions=vad.find_speech(models.vad, sound.speech_audio, len(sound.master.samples)))
    except AudioError as error:
        if error.reason in OF_THE_MACHINE:
            raise
        return UnusableRecording(reason=error.reason, detail=error.detail, seconds=error.seconds)


def _cut_clips(
    source: RecordingSource,
    transcript: UserTranscript | None,
    speech: DetectedSpeech,
    sound: LazyAudio,
    job: Job,
    stages: Stages,
    models: Models,
) -> PreparedRecording:
    length, warning = speech.track.length, speech.track.warning
    if not speech.regions:
        return PreparedRecording(
            source, length, warning=warning, refused="no_speech", detail=f"no speech found in {length / MASTER_RATE:.2f} s"
        )
    if transcript is None and job.whisper_settings is None:
        return refuse_recording(source, "no_transcript", "no transcript next to the recording", length)
    units = _make_text_units(source, transcript, speech, sound, job, stages, models)
    inputs = {
        "speech": make_key(make_speech_inputs(source)),
        "units": make_key({"units": [unit.model_dump() for unit in units]}),
        "whole": bool(transcript and transcript.text),
        "lengths": vars(job.lengths),
        "language": job.language,
        "code": extraction.compute_code_digests(),
    }

    def cut() -> list[MeasuredClip]:
        pieces = extraction.divide_recording(transcript, units, speech.regions, sound.master, job.lengths)
        return extraction.write_clips(job.out, source, pieces, speech.regions, sound.master, job.language)

    made = stages.run("clips", inputs, CLIPS, cut, extraction.make_existence_check(job.out))
    known = _embed_clips(made, inputs, job, stages, models)
    return PreparedRecording(source, length, tuple(speech.regions), tuple(made), warning, voices=known)


def _make_text_units(
    source: RecordingSource,
    transcript: UserTranscript | None,
    speech: DetectedSpeech,
    sound: LazyAudio,
    job: Job,
    stages: Stages,
    models: Models,
) -> list[TextUnit]:
    if transcript is not None:
        return transcript.make_units(speech.track.length, job.language or AUTO)
    assert job.whisper_settings is not None
    longest = job.whisper_settings.get("longest_window")
    inputs = {"form": FORM, "speech": make_key(make_speech_inputs(source)), "hearing": job.whisper_settings}
    return stages.run(
        "words",
        inputs,
        UNITS,
        lambda: whisper_engine.transcribe_recording(
            models.whisper, sound.speech_audio, vad.make_windows(speech.regions, sound.master, longest), job.language, longest
        ),
        lambda units: not any(unit.error for unit in units),  # windows that Whisper failed on are retried
    )


def _embed_clips(
    made: list[MeasuredClip], inputs: dict[str, Any], job: Job, stages: Stages, models: Models
) -> dict[str, speaker_similarity.Vector]:
    """Speaker embedding [H] of each clip file by id; {} without a speaker check. `inputs`: cache key inputs of the clips."""
    if job.encoder is None:
        return {}
    inputs = {
        "form": FORM,
        "clips": make_key(inputs),
        "encoder": job.encoder.digest,
        "products": "fp32",
    }  # older results used TF32 on a GPU
    paths = {clip.id: job.out / clip.audio for clip in made if clip.audio}
    found = stages.run("voices", inputs, VOICES, lambda: speaker_similarity.embed_clips(models.encoder, paths))
    return {identity: np.frombuffer(vector, "<f4") for identity, vector in found.items()}
