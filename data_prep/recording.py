"""One recording from file to clips, in three stages that remember their results: hear the speech, get the text, cut and judge."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from data_prep import measure, score, segment, transcribe, vad
from data_prep.account import Account, account
from data_prep.audio import MASTER_RATE, SPEECH_RATE, Audio, AudioError, Track, faded, flac, load, probe, to_rate
from data_prep.manifest import AUTO, Reject, Row
from data_prep.score import PRESETS, Candidate, failures
from data_prep.segment import Lengths, Piece, Unit
from data_prep.sources import Source
from data_prep.stages import Stages, key_of
from data_prep.transcripts import Transcript
from data_prep.vad import Region
from finetune import files

FORM = 1
"""Of the results of the two stages that cost hours: raise it when they change what they give. The last stage goes by its code instead."""
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


@dataclass(frozen=True)
class Outcome:
    """What became of one recording."""

    account: Account
    rows: list[Row]
    rejects: list[Reject]


class Models:
    """Owns the models of this process: each is loaded at most once, and only when a stage needs it."""

    def __init__(self, whisper: str | None, device: str) -> None:
        self.loads: Counter[str] = Counter()
        self._name, self._device = whisper, device

    @cached_property
    def vad(self) -> Any:
        self.loads["vad"] += 1
        return vad.load_vad()

    @cached_property
    def whisper(self) -> Any:
        assert self._name, "no Whisper was asked for"
        self.loads["whisper"] += 1
        return transcribe.load_whisper(self._name, self._device)


class Speech(BaseModel):
    """Result of the first stage for a recording that can be used."""

    model_config = ConfigDict(frozen=True)

    track: Track
    regions: list[Region]


class Unusable(BaseModel):
    """Result of the first stage for one that cannot."""

    model_config = ConfigDict(frozen=True)

    reason: str
    detail: str
    seconds: float


class Clips(BaseModel):
    """Result of the last stage."""

    model_config = ConfigDict(frozen=True)

    rows: list[Row]
    rejects: list[Reject]


SPEECH: TypeAdapter[Speech | Unusable] = TypeAdapter(Speech | Unusable)
UNITS: TypeAdapter[list[Unit]] = TypeAdapter(list[Unit])
CLIPS: TypeAdapter[Clips] = TypeAdapter(Clips)


def prepare(source: Source, transcript: Transcript | None, job: Job, stages: Stages, models: Models) -> Outcome:
    """All stages. `transcript` is None if Whisper is to listen."""
    sound = _Sound(source.path)
    heard = stages.run("speech", speech_inputs(source), SPEECH, lambda: hear_speech(sound, models))
    if isinstance(heard, Unusable):
        return refused(source, heard.reason, heard.detail, heard.seconds)
    if not heard.regions:
        return _without_speech(source, heard)
    units = _units(source, transcript, heard, sound, job, stages, models)
    inputs = {
        "form": FORM,
        "speech": key_of(speech_inputs(source)),
        "units": key_of({"units": [unit.model_dump() for unit in units]}),
        "lengths": vars(job.lengths),
        "source": source.name,
        "speaker": source.speaker,
        "language": job.language,
        "whole": bool(transcript and transcript.text),
        "code": [files.digest(Path(module.__file__ or "")) for module in (segment, measure, score, sys.modules[__name__])],
    }
    clips = stages.run("clips", inputs, CLIPS, lambda: cut(source, transcript, units, heard, sound.master, job), job_files(job))
    return Outcome(_account(source, heard, clips), clips.rows, clips.rejects)


def refused(source: Source, reason: str, detail: str, seconds: float) -> Outcome:
    """A recording that is rejected as a whole."""
    samples = round(seconds * MASTER_RATE)
    reject = Reject(
        source=source.name, start=0.0, end=samples / MASTER_RATE, stage="recording", reasons=[reason], detail=detail, speaker=source.speaker
    )
    return Outcome(account(source.name, source.speaker, samples, [], [], [Region(0, samples)], ""), [], [reject])


def speech_inputs(source: Source) -> dict[str, Any]:
    """What the first stage depends on."""
    return {"form": FORM, "recording": source.digest, "vad": vad.settings()}


def hear_speech(sound: _Sound, models: Models) -> Speech | Unusable:
    """Decode, judge, detect speech."""
    try:
        return Speech(track=sound.track, regions=vad.find_speech(models.vad, sound.hearing, len(sound.master.samples)))
    except AudioError as error:
        return Unusable(reason=error.reason, detail=error.detail, seconds=error.seconds)


def cut(source: Source, transcript: Transcript | None, units: list[Unit], speech: Speech, master: Audio, job: Job) -> Clips:
    """Divide, measure, judge, and write what is kept."""
    noise = measure.noise_power(master.samples, speech.regions)
    rows, rejects = [], []
    for piece in _pieces(transcript, units, speech, master, job):
        language = job.language or _language(piece)
        quality = measure.measure(master.samples, piece, speech.regions, noise)
        seconds = (piece.stop - piece.start) / MASTER_RATE
        reasons = failures(Candidate(seconds, piece.text, language, quality, job.lengths), PRESETS["default"])
        common: dict[str, Any] = {
            "text": piece.text or None,
            "speaker": source.speaker,
            "language": language,
            "quality": quality,
            "source": source.name,
            "start": round(piece.start / MASTER_RATE, 6),
            "end": round(piece.stop / MASTER_RATE, 6),
        }
        if reasons:
            rejects.append(Reject(stage="clip", reasons=reasons, **common))
            continue
        identity = f"{source.digest[:12]}_{to_rate(piece.start, MASTER_RATE, 1000):08d}_{to_rate(piece.stop, MASTER_RATE, 1000):08d}"
        path = f"clips/{identity[:2]}/{identity}.flac"
        files.write_bytes(job.out / path, flac(faded(master.cut(piece.start, piece.stop))))
        rows.append(Row(id=identity, audio=path, duration=round(seconds, 6), **common))
    return Clips(rows=rows, rejects=rejects)


def job_files(job: Job) -> Any:
    """A test whether all clips of a stored result are still on the disk."""
    return lambda clips: all((job.out / row.audio).is_file() for row in clips.rows)


class _Sound:
    """The samples of one recording, decoded when a stage first asks for them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def track(self) -> Track:
        return probe(self._path)

    @cached_property
    def _both(self) -> list[Audio]:
        return load(self._path, self.track, MASTER_RATE, SPEECH_RATE)

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
    )


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


def _account(source: Source, speech: Speech, clips: Clips) -> Account:
    kept, rejected = ([_span(entry.start, entry.end) for entry in entries] for entries in (clips.rows, clips.rejects))
    return account(source.name, source.speaker, speech.track.length, speech.regions, kept, rejected, speech.track.warning)


def _without_speech(source: Source, speech: Speech) -> Outcome:
    detail = f"no speech found in {speech.track.length / MASTER_RATE:.2f} s"
    reject = Reject(source=source.name, stage="recording", reasons=["no_speech"], detail=detail, speaker=source.speaker)
    return Outcome(account(source.name, source.speaker, speech.track.length, [], [], [], speech.track.warning), [], [reject])


def _span(start: float | None, end: float | None) -> Region:
    return Region(round((start or 0.0) * MASTER_RATE), round((end or 0.0) * MASTER_RATE))
