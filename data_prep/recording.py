"""One recording from file to measured clips, in stages that remember their results: hear the speech, get the text, cut and measure; and,
if asked for, who the clips sound like.

Every piece that has a text becomes a file, and none is judged here: rules and a person's decisions may change without anything being heard
again.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Base64Bytes, BaseModel, ConfigDict, TypeAdapter

from data_prep import loudness, measure, segment, speaker_encoder, transcribe, vad, voices
from data_prep.audio import MASTER_RATE, Audio, Track, bandwidth, faded, flac, to_rate
from data_prep.decoder import Decoder
from data_prep.formats import AudioError
from data_prep.manifest import AUTO
from data_prep.score import Quality
from data_prep.segment import Lengths, Piece, Unit
from data_prep.sources import Source
from data_prep.speaker_encoder import Encoder
from data_prep.stages import Memory, NotStoredError, Stages, key_of
from data_prep.transcripts import Transcript
from data_prep.vad import Region
from finetune import files

FORM = 1
"""Of the results of the two stages that cost hours: raise it when they change what they give. The last stage goes by its code instead."""
OF_THE_MACHINE = ("decoder_crashed", "decoder_stalled")
"""Reasons that another run may not find."""
UTTERANCE_TOLERANCE = 1.0
"""Seconds by which the times of a transcript may miss a pause."""


@dataclass(frozen=True)
class Job:
    """What holds for all recordings of a run."""

    out: Path
    lengths: Lengths
    language: str | None
    """Full name, or None: Whisper detects it, a transcript leaves it open."""
    hearing: dict[str, Any] | None
    """`transcribe.settings`, or None with transcripts."""
    encoder: Encoder | None = None
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


class Clip(BaseModel):
    """A piece of a recording: measured, and not yet judged."""

    model_config = ConfigDict(frozen=True)

    id: str
    """Digest of the recording, first and last millisecond."""
    audio: str | None
    """Path relative to the data set; None for a piece without text, which is no use to anybody."""
    start: int
    """Samples at `MASTER_RATE`."""
    stop: int
    text: str
    language: str
    quality: Quality
    """Of the sound as it was recorded."""
    gain_db: float
    """By which the file is louder than the recording."""

    @property
    def seconds(self) -> float:
        return (self.stop - self.start) / MASTER_RATE


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


class Models:
    """Owns the models and the decoder of this process: each is loaded at most once, and only when a stage needs it. A context manager."""

    def __init__(self, whisper: str | None, device: str, folder: Path, encoder: Encoder | None = None) -> None:
        self.loads: Counter[str] = Counter()
        self._name, self._device, self._folder, self._encoder = whisper, device, folder, encoder
        self._open = ExitStack()

    @cached_property
    def decoder(self) -> Decoder:
        """Its samples pass through `folder`."""
        return self._open.enter_context(Decoder(self._folder))

    @cached_property
    def vad(self) -> Any:
        self.loads["vad"] += 1
        return vad.load_vad()

    @cached_property
    def whisper(self) -> Any:
        assert self._name, "no Whisper was asked for"
        self.loads["whisper"] += 1
        return transcribe.load_whisper(self._name, self._device)

    @cached_property
    def encoder(self) -> Any:
        assert self._encoder, "no speaker check was asked for"
        self.loads["speaker_encoder"] += 1
        return speaker_encoder.load(self._encoder.folder, self._device)

    def __enter__(self) -> Models:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


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
    sound = _Sound(source.path, models)
    try:
        heard = stages.run("speech", speech_inputs(source), SPEECH, lambda: hear_speech(sound, models))
    except AudioError as error:
        return refused(source, error.reason, error.detail, round(error.seconds * MASTER_RATE))
    if isinstance(heard, Unusable):
        return refused(source, heard.reason, heard.detail, round(heard.seconds * MASTER_RATE))
    if not heard.regions:
        detail = f"no speech found in {heard.track.length / MASTER_RATE:.2f} s"
        return Recording(source, heard.track.length, warning=heard.track.warning, refused="no_speech", detail=detail)
    if transcript is None and job.hearing is None:
        return refused(source, "no_transcript", "nothing beside it says what is said in it", heard.track.length)
    units = _units(source, transcript, heard, sound, job, stages, models)
    inputs = clip_inputs(source, transcript, units, job)
    clips = stages.run("clips", inputs, CLIPS, lambda: cut(source, transcript, units, heard, sound.master, job), are_there(job.out))
    known = _voices(clips, inputs, job, stages, models)
    return Recording(source, heard.track.length, tuple(heard.regions), tuple(clips), heard.track.warning, voices=known)


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


def clip_inputs(source: Source, transcript: Transcript | None, units: list[Unit], job: Job) -> dict[str, Any]:
    """What the last stage depends on, its own code included."""
    return {
        "speech": key_of(speech_inputs(source)),
        "units": key_of({"units": [unit.model_dump() for unit in units]}),
        "whole": bool(transcript and transcript.text),
        "lengths": vars(job.lengths),
        "language": job.language,
        "code": [files.digest(Path(module.__file__ or "")) for module in (segment, measure, loudness, sys.modules[__name__])],
    }


def hear_speech(sound: _Sound, models: Models) -> Speech | Unusable:
    """Decode, see whether it is usable, detect speech."""
    try:
        return Speech(track=sound.track, regions=vad.find_speech(models.vad, sound.hearing, len(sound.master.samples)))
    except AudioError as error:
        if error.reason in OF_THE_MACHINE:
            raise
        return Unusable(reason=error.reason, detail=error.detail, seconds=error.seconds)


def cut(source: Source, transcript: Transcript | None, units: list[Unit], speech: Speech, master: Audio, job: Job) -> list[Clip]:
    """Divide, measure, and write what has a text, brought to the same loudness as other recordings."""
    noise = measure.noise_power(master.samples, speech.regions)
    of_all = {"bandwidth_hz": float(bandwidth(master.samples, MASTER_RATE))}
    gain = loudness.gain(master, speech.regions)
    clips = []
    for piece in _pieces(transcript, units, speech, master, job):
        clip = Clip(
            id=identity(source, piece),
            audio=clip_path(source, piece) if piece.text else None,
            start=piece.start,
            stop=piece.stop,
            text=piece.text,
            language=job.language or _language(piece),
            quality=measure.measure(master.samples, piece, speech.regions, noise).model_copy(update=of_all),
            gain_db=round(20 * math.log10(gain), 2),
        )
        if clip.audio:
            louder = Audio(master.samples[piece.start : piece.stop] * np.float32(gain), MASTER_RATE)
            files.write_bytes(job.out / clip.audio, flac(faded(louder)))
        clips.append(clip)
    return clips


def identity(source: Source, piece: Piece) -> str:
    """The same sound at the same place has the same name, whatever its text and its verdict."""
    return f"{source.digest[:12]}_{to_rate(piece.start, MASTER_RATE, 1000):08d}_{to_rate(piece.stop, MASTER_RATE, 1000):08d}"


def clip_path(source: Source, piece: Piece) -> str:
    """Where a clip lies in the data set."""
    return f"clips/{source.digest[:2]}/{identity(source, piece)}.flac"


def are_there(out: Path) -> Callable[[list[Clip]], bool]:
    """A test whether all clips of a stored result are still on the disk."""
    return lambda clips: all((out / clip.audio).is_file() for clip in clips if clip.audio)


class _Sound:
    """The samples of one recording, decoded when a stage first asks for them."""

    def __init__(self, path: Path, models: Models) -> None:
        self._path, self._models = path, models

    @cached_property
    def track(self) -> Track:
        return self._models.decoder.probe(self._path)

    @cached_property
    def _both(self) -> tuple[Audio, Audio]:
        return self._models.decoder.load(self._path, self.track)

    @property
    def master(self) -> Audio:
        return self._both[0]

    @property
    def hearing(self) -> Audio:
        return self._both[1]


def _units(
    source: Source, transcript: Transcript | None, speech: Speech, sound: _Sound, job: Job, stages: Stages, models: Models
) -> list[Unit]:
    if transcript is not None:
        return transcript.units(speech.track.length, job.language or AUTO)
    assert job.hearing is not None
    inputs = {"form": FORM, "speech": key_of(speech_inputs(source)), "hearing": job.hearing}
    return stages.run(
        "words",
        inputs,
        UNITS,
        lambda: transcribe.transcribe(models.whisper, sound.hearing, vad.windows(speech.regions, sound.master), job.language),
        lambda units: not any(unit.error for unit in units),  # what Whisper failed on is tried again
    )


def _voices(clips: list[Clip], inputs: dict[str, Any], job: Job, stages: Stages, models: Models) -> dict[str, voices.Vector]:
    """Of the clips as they lie in the data set, if a speaker check was asked for; `inputs`: what the clips depend on."""
    if job.encoder is None:
        return {}
    inputs = {"form": FORM, "clips": key_of(inputs), "encoder": job.encoder.digest}
    paths = {clip.id: job.out / clip.audio for clip in clips if clip.audio}
    found = stages.run("voices", inputs, VOICES, lambda: voices.listen(models.encoder, paths))
    return {identity: np.frombuffer(vector, "<f4") for identity, vector in found.items()}


def _pieces(transcript: Transcript | None, units: list[Unit], speech: Speech, master: Audio, job: Job) -> list[Piece]:
    length = len(master.samples)
    if transcript is not None and transcript.text:
        cuts = segment.whole(units, speech.regions, length)
    else:
        tolerance = UTTERANCE_TOLERANCE if transcript else transcribe.WORD_TOLERANCE
        cuts = segment.align(units, speech.regions, length, tolerance)
    bonus = segment.utterance_bonus if transcript else segment.sentence_bonus
    return segment.divide(cuts, units, master, job.lengths, bonus)


def _language(piece: Piece) -> str:
    """What Whisper heard most of."""
    heard = Counter(unit.heard.language for unit in piece.units if unit.heard)
    return max(sorted(heard), key=heard.__getitem__) if heard else AUTO
