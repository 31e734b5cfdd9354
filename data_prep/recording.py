"""One recording from file to measured clips, in stages that remember their results: hear the speech, get the text, cut and measure; and,
if asked for, who the clips sound like.

Every piece that has a text becomes a file, and none is judged here: rules and a person's decisions may change without anything being heard
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Base64Bytes, BaseModel, ConfigDict, TypeAdapter

from data_prep import clips, transcribe, vad, voices
from data_prep.audio import MASTER_RATE, Track
from data_prep.clips import Clip
from data_prep.codec_interface import SpeakerEncoder
from data_prep.formats import AudioError
from data_prep.manifest import AUTO
from data_prep.models import Models, Sound
from data_prep.segment import Lengths, Unit
from data_prep.sources import Source
from data_prep.stages import Memory, NotStoredError, Stages, key_of
from data_prep.transcripts import Transcript
from data_prep.vad import Region

FORM = 1
"""Of the results of the two stages that cost hours: raise it when they change what they give. The last stage goes by its code instead."""
OF_THE_MACHINE = ("decoder_crashed", "decoder_stalled")
"""Reasons that another run may not find."""


@dataclass(frozen=True)
class Job:
    """What holds for all recordings of a run."""

    out: Path
    lengths: Lengths
    language: str | None
    """Full name, or None: Whisper detects it, a transcript leaves it open."""
    hearing: dict[str, Any] | None
    """`transcribe.settings`, or None with transcripts."""
    encoder: SpeakerEncoder | None = None
    """Of the speaker check, if there is to be one."""


class Speech(BaseModel):
    """Result of the first stage for a recording that can be used."""

    model_config = ConfigDict(frozen=True)

    track: Track
    regions: list[Region]


class Unusable(BaseModel):
    """Result of the first stage for one that cannot, and why."""

    model_config = ConfigDict(frozen=True)

    reason: str
    detail: str
    seconds: float


@dataclass(frozen=True)
class Recording:
    """What was heard in one recording."""

    source: Source
    total: int
    """Samples at `MASTER_RATE`; 0 if nobody knows."""
    regions: tuple[Region, ...] = ()
    """Its speech: all of it is in `clips`, unless the recording is refused."""
    clips: tuple[Clip, ...] = ()
    warning: str = ""
    refused: str = ""
    """One word if the recording is rejected as a whole."""
    detail: str = ""
    """What was found then."""
    voices: Mapping[str, voices.Vector] = field(default_factory=dict, compare=False)
    """By id of the clip; empty without a speaker check."""


SPEECH: TypeAdapter[Speech | Unusable] = TypeAdapter(Speech | Unusable)
UNITS: TypeAdapter[list[Unit]] = TypeAdapter(list[Unit])
CLIPS: TypeAdapter[list[Clip]] = TypeAdapter(list[Clip])
VOICES: TypeAdapter[dict[str, bytes]] = TypeAdapter(dict[str, Base64Bytes])


def prepare(source: Source, transcript: Transcript | None, job: Job, stages: Stages, models: Models) -> Recording:
    """All stages. Without a transcript Whisper listens, or, if it is not to, the recording is refused.

    A decoder that died or stalled may have had other reasons than the file, so that is not remembered: the next run tries again.
    """
    if source.problem:
        return refused(source, "unreadable", source.problem, 0)
    sound = Sound(source.path, models)
    try:
        heard = stages.run("speech", speech_inputs(source), SPEECH, lambda: hear_speech(sound, models))
        if isinstance(heard, Unusable):
            return refused(source, heard.reason, heard.detail, round(heard.seconds * MASTER_RATE))
        return _with_clips(source, transcript, heard, sound, job, stages, models)
    except AudioError as error:
        return refused(source, error.reason, error.detail, round(error.seconds * MASTER_RATE))


def refused(source: Source, reason: str, detail: str, total: int) -> Recording:
    """A recording that is rejected as a whole, all its `total` samples."""
    return Recording(source, total, (Region(0, total),), refused=reason, detail=detail)


def stored_speech(source: Source, stages: Memory) -> Speech | Unusable | None:
    """Result of the first stage, if it is there."""
    try:
        return stages.run("speech", speech_inputs(source), SPEECH, lambda: Unusable(reason="", detail="", seconds=0.0))
    except NotStoredError:
        return None


def speech_inputs(source: Source) -> dict[str, Any]:
    """What the first stage depends on."""
    return {"form": FORM, "recording": source.digest, "vad": vad.settings()}


def hear_speech(sound: Sound, models: Models) -> Speech | Unusable:
    """Decode, see whether it is usable, detect speech."""
    try:
        return Speech(track=sound.track, regions=vad.find_speech(models.vad, sound.hearing, len(sound.master.samples)))
    except AudioError as error:
        if error.reason in OF_THE_MACHINE:
            raise
        return Unusable(reason=error.reason, detail=error.detail, seconds=error.seconds)


def _with_clips(
    source: Source, transcript: Transcript | None, heard: Speech, sound: Sound, job: Job, stages: Stages, models: Models
) -> Recording:
    length, warning = heard.track.length, heard.track.warning
    if not heard.regions:
        return Recording(source, length, warning=warning, refused="no_speech", detail=f"no speech found in {length / MASTER_RATE:.2f} s")
    if transcript is None and job.hearing is None:
        return refused(source, "no_transcript", "nothing beside it says what is said in it", length)
    units = _units(source, transcript, heard, sound, job, stages, models)
    inputs = {
        "speech": key_of(speech_inputs(source)),
        "units": key_of({"units": [unit.model_dump() for unit in units]}),
        "whole": bool(transcript and transcript.text),
        "lengths": vars(job.lengths),
        "language": job.language,
        "code": clips.code(),
    }

    def cut() -> list[Clip]:
        pieces = clips.divide(transcript, units, heard.regions, sound.master, job.lengths)
        return clips.write(job.out, source, pieces, heard.regions, sound.master, job.language)

    made = stages.run("clips", inputs, CLIPS, cut, clips.are_there(job.out))
    known = _voices(made, inputs, job, stages, models)
    return Recording(source, length, tuple(heard.regions), tuple(made), warning, voices=known)


def _units(
    source: Source, transcript: Transcript | None, speech: Speech, sound: Sound, job: Job, stages: Stages, models: Models
) -> list[Unit]:
    if transcript is not None:
        return transcript.units(speech.track.length, job.language or AUTO)
    assert job.hearing is not None
    longest = job.hearing.get("longest_window")
    inputs = {"form": FORM, "speech": key_of(speech_inputs(source)), "hearing": job.hearing}
    return stages.run(
        "words",
        inputs,
        UNITS,
        lambda: transcribe.transcribe(
            models.whisper, sound.hearing, vad.windows(speech.regions, sound.master, longest), job.language, longest
        ),
        lambda units: not any(unit.error for unit in units),  # what Whisper failed on is tried again
    )


def _voices(made: list[Clip], inputs: dict[str, Any], job: Job, stages: Stages, models: Models) -> dict[str, voices.Vector]:
    """Of the clips as they lie in the data set, if a speaker check was asked for; `inputs`: what the clips depend on."""
    if job.encoder is None:
        return {}
    inputs = {"form": FORM, "clips": key_of(inputs), "encoder": job.encoder.digest, "products": "fp32"}  # older ones are TF32 from a GPU
    paths = {clip.id: job.out / clip.audio for clip in made if clip.audio}
    found = stages.run("voices", inputs, VOICES, lambda: voices.listen(models.encoder, paths))
    return {identity: np.frombuffer(vector, "<f4") for identity, vector in found.items()}
