"""Pipeline for one recording, in stages with stored results: detect speech, get the text, cut and measure clips. Optional: embed speakers,
rate the sound, align the texts with the sound, check them with a Whisper.

A long recording is divided into parts after speech detection; the other stages process a part as they process a short recording.
Every piece with text becomes a clip file. Selection happens later, so rules and review decisions may change without transcribing again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from sys import maxsize
from typing import Any

import numpy as np
from pydantic import Base64Bytes, BaseModel, ConfigDict, TypeAdapter

from data_prep import manifest
from data_prep.alignment import clip_alignment, recording_alignment
from data_prep.alignment.interface import Aligner, TextAlignment
from data_prep.alignment.recording_alignment import DividedText, LocatedText
from data_prep.audio import sandboxed_decoder
from data_prep.audio.stream_reader import AudioError
from data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Track
from data_prep.audio_codecs.interface import SpeakerEncoder
from data_prep.clips import dnsmos, extraction, speaker_similarity
from data_prep.clips.dnsmos import SoundRatings, SoundScorer
from data_prep.clips.extraction import MeasuredClip, RecordingLevels
from data_prep.manifest import AUTO
from data_prep.parallel import process_pool
from data_prep.pipeline.lazy_audio import LazyAudio, PartAudio
from data_prep.pipeline.stage_cache import NotStoredError, Stages, StoredStages, make_key
from data_prep.pipeline.worker_activity import format_time, report_activity
from data_prep.pipeline.worker_models import Models
from data_prep.recordings.recording_files import RecordingSource
from data_prep.recordings.user_transcripts import UserTranscript
from data_prep.segmentation import recording_parts, subtitle_sync, vad
from data_prep.segmentation.clip_segmentation import Lengths, TextUnit
from data_prep.segmentation.subtitle_sync import TranscriptTiming
from data_prep.segmentation.vad import Region, SpeechScan
from data_prep.speakers.voice_changes import find_voice_changes
from data_prep.speakers.windowed_speaker_vectors import (
    StoredVoiceWindows,
    VoiceWindows,
    describe_windows,
    embed_windows,
    join_windows,
    read_windows,
)
from data_prep.transcription import whisper_engine, word_errors

FORM = 1
"""Version of the results of the two slow stages: increase it when their results change. The cutting stage uses its code digest."""
SAMPLES = "samples"
"""Folder for the samples of recordings that are divided into parts, 576 MB an hour, until all parts are finished."""
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
    scorer: SoundScorer | None = None
    """Of the sound quality, if it is to be rated."""
    aligner: Aligner | None = None
    """Checks the texts against the sound, if that is requested."""
    check_settings: dict[str, Any] | None = None
    """`whisper_engine.describe_settings` of the Whisper that checks the user's transcripts, if that is requested."""
    part_seconds: float = field(default_factory=lambda: recording_parts.PART_SECONDS)
    """Target duration of the parts of a long recording."""


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
    damage: str = ""
    """What is missing of a damaged file; part of `warning`."""
    refused: str = ""
    """Reason if the recording is rejected as a whole; otherwise empty."""
    detail: str = ""
    """Details of `refused`."""
    voices: Mapping[str, speaker_similarity.Vector] = field(default_factory=dict, compare=False)
    """Speaker embedding by clip id; empty without a speaker check."""
    windows: VoiceWindows = field(default_factory=VoiceWindows, compare=False)
    """Speaker vectors of short windows; none without a speaker check."""
    delay: float = 0.0
    """Seconds by which the user's transcript was late (negative: early); its times were moved by as much."""
    timings: tuple[TranscriptTiming, ...] = ()
    """Whether the cues of the user's transcript begin where speech begins, block by block; empty without cues, or with too few."""
    has_unchecked_times: bool = False
    """Whether the user's transcript has too few cues for `timings`, and no model checks its clips."""


@dataclass(frozen=True)
class TimedText:
    """The user's transcript with repaired times; empty if Whisper transcribes."""

    units: tuple[TextUnit, ...] = ()
    ends: tuple[int, ...] | None = None
    """`stop` of the units that end an utterance; None: the times are those of the transcript, not of an aligner."""
    note: str = ""
    """What was left out, and what the aligner changed."""
    delay: float = 0.0
    timings: tuple[TranscriptTiming, ...] = ()
    has_unchecked_times: bool = False


@dataclass(frozen=True)
class DividedRecording:
    """A long recording after the stages that need all of it; its parts are independent of each other."""

    speech: DetectedSpeech
    levels: RecordingLevels
    parts: list[Region]
    text: TimedText


@dataclass(frozen=True)
class DecodedPart:
    """A part of a long recording that is still being decoded; its samples are complete."""

    place: Region
    regions: list[Region]
    """Speech, relative to the start of the part."""
    folder: Path
    """Of the samples, until the recording is decoded."""


@dataclass(frozen=True)
class PreparedPart:
    """Result of all stages for one part of a recording; positions are those of the recording."""

    clips: list[MeasuredClip]
    voices: Mapping[str, speaker_similarity.Vector]
    windows: VoiceWindows


@dataclass(frozen=True)
class RecordingPart:
    """What the stages after speech detection work on: a whole recording, or a part of a long one. Positions are relative to its start."""

    sound: LazyAudio | PartAudio
    place: Region
    """In the recording."""
    is_whole: bool
    """Whether this is all of the recording."""
    levels: RecordingLevels | None
    """Of the whole recording; None: to be measured when clips are written, or not known yet."""
    text: TimedText
    """Of the user's transcript."""
    regions: list[Region]
    """Speech."""

    def describe_place(self) -> dict[str, Any]:
        """Cache key inputs of a part of a recording; none for a whole one."""
        return {} if self.is_whole else {"part": list(self.place)}


FindUtterances = Callable[[int], list[Region]]
"""The utterances of a user's transcript, sorted by start, for a recording of so many samples."""
SPEECH: TypeAdapter[DetectedSpeech | UnusableRecording] = TypeAdapter(DetectedSpeech | UnusableRecording)
UNITS: TypeAdapter[list[TextUnit]] = TypeAdapter(list[TextUnit])
CLIPS: TypeAdapter[list[MeasuredClip]] = TypeAdapter(list[MeasuredClip])
LEVELS = TypeAdapter(RecordingLevels)
LOCATED: TypeAdapter[LocatedText] = TypeAdapter(LocatedText)
DIVIDED: TypeAdapter[DividedText] = TypeAdapter(DividedText)
WINDOWS: TypeAdapter[StoredVoiceWindows] = TypeAdapter(StoredVoiceWindows)
RATINGS: TypeAdapter[dict[str, SoundRatings]] = TypeAdapter(dict[str, SoundRatings])
ALIGNMENTS: TypeAdapter[dict[str, TextAlignment]] = TypeAdapter(dict[str, TextAlignment])
VOICES: TypeAdapter[dict[str, bytes]] = TypeAdapter(dict[str, Base64Bytes])


def prepare_recording(
    source: RecordingSource, transcript: UserTranscript | None, job: Job, stages: Stages, models: Models
) -> PreparedRecording:
    """Run all stages, in all parts one after the other."""
    found = examine_recording(source, transcript, job, stages, models)
    if isinstance(found, PreparedRecording):
        return found
    return join_parts(source, found, [prepare_part(source, transcript, found, part, job, stages, models) for part in found.parts])


def examine_recording(
    source: RecordingSource, transcript: UserTranscript | None, job: Job, stages: Stages, models: Models
) -> PreparedRecording | DividedRecording:
    """Run the stages that need the whole recording: all of them if it is not divided into parts. Without a transcript, Whisper transcribes;
    if Whisper is disabled, the recording is rejected.

    A decoder that crashed or stalled may be the machine's fault, so that result is not stored and the next run tries again.
    """
    if source.problem:
        return refuse_recording(source, "unreadable", source.problem, 0)
    if source.synthetic:
        return refuse_recording(source, "synthetic", f"the file says {source.synthetic!r}; --allow-synthetic uses it all the same", 0)
    divisible = not (transcript and transcript.text) or job.aligner is not None
    sound = LazyAudio(source.path, models, locate_samples(source, stages.folder) if divisible else None, job.part_seconds)
    try:
        speech = stages.run(
            "speech",
            make_speech_inputs(source),
            SPEECH,
            lambda: detect_speech(sound, models, job.part_seconds, _plan_early(transcript, job)),
        )
        if isinstance(speech, UnusableRecording):
            return refuse_recording(source, speech.reason, speech.detail, round(speech.seconds * MASTER_RATE))
        length = speech.track.length
        if not speech.regions:
            detail = f"no speech found in {length / MASTER_RATE:.2f} s"
            return PreparedRecording(source, length, warning=_join_notes(speech, TimedText()), refused="no_speech", detail=detail)
        if transcript is None and job.whisper_settings is None:
            return refuse_recording(source, "no_transcript", "no transcript next to the recording", length)
        text = _time_transcript(source, transcript, speech, sound, job, stages, models) if transcript else TimedText()
        spoken = [Region(unit.start, unit.stop) for unit in text.units]
        divisible = divisible and not (transcript and transcript.text and text.ends is None)  # one text without the times of its words
        found = recording_parts.list_parts(speech.regions, length, job.part_seconds, spoken) if divisible else [Region(0, length)]
        if len(found) == 1:
            whole = RecordingPart(sound, found[0], True, None, text, speech.regions)
            return _make_recording(source, speech, text, [_cut_clips(source, transcript, whole, job, stages, models)])
        inputs = {"speech": make_key(make_speech_inputs(source)), "code": extraction.compute_code_digests()}
        levels = stages.run("levels", inputs, LEVELS, lambda: extraction.measure_levels(sound.master, speech.regions))
        return DividedRecording(speech, levels, found, text)
    except AudioError as error:
        return refuse_recording(source, error.reason, error.detail, round(error.seconds * MASTER_RATE))


def store_samples(source: RecordingSource, divided: DividedRecording, stages: Stages, models: Models) -> None:
    """Decode a divided recording for `prepare_part`, unless its samples are stored. Raises `AudioError`."""
    LazyAudio(source.path, models, locate_samples(source, stages.folder)).store(divided.speech.track)


def prepare_part(
    source: RecordingSource,
    transcript: UserTranscript | None,
    divided: DividedRecording,
    part: Region,
    job: Job,
    stages: Stages,
    models: Models,
) -> PreparedPart:
    """Run the stages after speech detection for one part: as for a short recording, with the levels of the whole one."""
    sound = PartAudio(locate_samples(source, stages.folder), divided.speech.track, part)
    text = _select_utterances(divided, part)
    whole = RecordingPart(sound, part, False, divided.levels, text, recording_parts.select_regions(divided.speech.regions, part))
    return _cut_clips(source, transcript, whole, job, stages, models)


def begin_part(source: RecordingSource, part: DecodedPart, job: Job, stages: Stages, models: Models) -> None:
    """Run the stages that need no more than a part of a recording, and no text of the user's, while the rest is being decoded:
    `prepare_part` uses their stored results. Nothing to do if the samples are gone, because decoding failed."""
    folder = part.folder if part.folder.exists() else locate_samples(source, stages.folder)
    sound = PartAudio(folder, None, part.place)
    known = RecordingPart(sound, part.place, False, None, TimedText(), part.regions)
    with contextlib.suppress(FileNotFoundError):
        if (settings := job.whisper_settings or job.check_settings) is not None:
            _transcribe_part(source, known, settings, job, stages, models)
        _embed_windows(source, known, job, stages, models)


def join_parts(source: RecordingSource, divided: DividedRecording, prepared: list[PreparedPart]) -> PreparedRecording:
    """The recording of all its parts, in order."""
    return _make_recording(source, divided.speech, divided.text, prepared)


def locate_samples(source: RecordingSource, stages: Path) -> Path:
    """The folder of the decoded samples of a divided recording."""
    return stages / SAMPLES / source.digest


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


def _plan_early(transcript: UserTranscript | None, job: Job) -> FindUtterances | None:
    """What `detect_speech` needs to begin parts before the recording is decoded; None: nothing can be done without the times of the text.

    If the times of the transcript are moved later, the parts may end elsewhere, and what was begun is not used.
    """
    if transcript is None:
        return None if job.whisper_settings is None else lambda _length: []
    if job.aligner is not None or (job.encoder is None and job.check_settings is None):
        return None
    language = _find_language(transcript, job) or AUTO
    return lambda length: [Region(unit.start, unit.stop) for unit in transcript.make_units(length, language)]


def detect_speech(
    sound: LazyAudio, models: Models, part_seconds: float, early: FindUtterances | None
) -> DetectedSpeech | UnusableRecording:
    """Decode, check that the audio is usable, detect speech; in a long recording while it is decoded. `early`: send each part of it to the
    parent process as a `DecodedPart` as soon as it is known; None: do not."""

    def report(done: int) -> None:
        report_activity("detecting speech", done / SPEECH_RATE)

    try:
        scan = None
        if sound.is_divided and models.vad.network is not None:
            scan = SpeechScan(models.vad.network)
            utterances = None if early is None else early(sound.track.length)
            sound.store(sound.track, _PartFinder(scan, sound.track.length, part_seconds, utterances).follow)
        regions = vad.find_speech(models.vad, sound.speech_audio, len(sound.master.samples), report, scan)
        return DetectedSpeech(track=sound.track, regions=regions)
    except AudioError as error:
        if error.reason in OF_THE_MACHINE:
            raise
        return UnusableRecording(reason=error.reason, detail=error.detail, seconds=error.seconds)


class _PartFinder:
    """Detects speech in the samples of a recording that is being decoded, and finds its parts."""

    def __init__(self, scan: SpeechScan, length: int, part_seconds: float, utterances: list[Region] | None) -> None:
        """`utterances`: of the user's transcript, inside of which no part should end; None: send no part."""
        self._scan, self._length, self._seconds, self._utterances = scan, length, part_seconds, utterances
        self._start = 0

    def follow(self, folder: Path) -> None:
        """Process what is new in the temporary `folder` of the samples."""
        master, speech = sandboxed_decoder.map_growing(folder)
        if not self._scan.advance(speech.samples, False) or self._utterances is None:
            return
        while True:
            regions = self._scan.find_regions(self._start, self._length)
            part = recording_parts.find_next_part(regions, self._start, self._length, self._seconds, self._utterances)
            if part is None or part.stop > len(master.samples):
                return
            process_pool.send_progress(DecodedPart(part, recording_parts.select_regions(regions, part), folder))
            self._start = part.stop


def _make_recording(source: RecordingSource, speech: DetectedSpeech, text: TimedText, prepared: list[PreparedPart]) -> PreparedRecording:
    return PreparedRecording(
        source,
        speech.track.length,
        tuple(speech.regions),
        tuple(clip for part in prepared for clip in part.clips),
        _join_notes(speech, text),
        speech.track.warning,
        voices={identity: vector for part in prepared for identity, vector in part.voices.items()},
        windows=join_windows([part.windows for part in prepared]),
        delay=text.delay,
        timings=text.timings,
        has_unchecked_times=text.has_unchecked_times,
    )


def _join_notes(speech: DetectedSpeech, text: TimedText) -> str:
    """What the user should know about a recording that is used."""
    return "; ".join(filter(None, [speech.track.warning, speech.track.note, text.note]))


def _find_language(transcript: UserTranscript | None, job: Job) -> str | None:
    """Full name of the language, if it is given: by the user, or by the table that the transcript comes from."""
    return job.language or (manifest.parse_locale(transcript.language) if transcript and transcript.language else None)


def _time_transcript(
    source: RecordingSource,
    transcript: UserTranscript,
    speech: DetectedSpeech,
    sound: LazyAudio,
    job: Job,
    stages: Stages,
    models: Models,
) -> TimedText:
    """The user's transcript, moved if all of it is late, without cues in whose time nobody speaks if the others fit the speech, and with
    the times of its words where an aligner can find them."""
    units = transcript.make_units(speech.track.length, _find_language(transcript, job) or AUTO)
    has_cues = bool(transcript.utterances) and not transcript.words  # words do not begin after pauses
    delay = subtitle_sync.measure_delay(units, speech.regions) if has_cues else 0.0
    units = subtitle_sync.shift_units(units, delay) if delay else units
    is_checked = job.aligner is not None or job.check_settings is not None  # a model decides on each clip; few cues would decide worse
    timings = tuple(subtitle_sync.check_timing(units, speech.regions)) if has_cues else ()
    timings = () if is_checked and len(units) < subtitle_sync.FEW_CUES else timings
    fits = bool(timings) and all(timing.is_trusted for timing in timings)
    unspoken = subtitle_sync.find_unspoken(units, speech.regions) if fits else []
    units = [unit for unit in units if unit not in unspoken]
    note = recording_alignment.describe_unspoken([unit.text.strip() for unit in unspoken])
    unchecked = has_cues and not timings and not is_checked
    short = Region(speech.regions[0].start, speech.regions[-1].stop).seconds <= job.lengths.longest
    if job.aligner is None or (transcript.text and short):  # a text that is short enough for one clip has nothing to locate
        return TimedText(tuple(units), None, note, delay, timings, unchecked)
    known: recording_alignment.Times = "right" if fits else "approximate"
    times: recording_alignment.Times = "unknown" if transcript.text else known
    inputs = {
        "form": FORM,
        "speech": make_key(make_speech_inputs(source)),
        "units": make_key({"units": [unit.model_dump() for unit in units]}),
        "aligner": job.aligner.digest,
        "longest": job.lengths.longest,
        "times": times,
        "code": recording_alignment.compute_code_digest(),
    }

    def locate() -> LocatedText:
        windows = vad.make_windows(speech.regions, sound.master)
        return recording_alignment.locate_utterances(models.aligner, sound.speech_audio, windows, units, job.lengths.longest, times)

    located = stages.run("located", inputs, LOCATED, locate)
    notes = "; ".join(filter(None, [note, located.note]))
    return TimedText(tuple(located.units), tuple(located.ends), notes, delay, timings, unchecked)


def _select_utterances(divided: DividedRecording, part: Region) -> TimedText:
    """The utterances with their middle in `part`, relative to its start; those after the recording's end belong to the last part."""
    stop = part.stop if part != divided.parts[-1] else maxsize
    inside = [unit for unit in divided.text.units if part.start <= (unit.start + unit.stop) // 2 < stop]
    moved = [unit.model_copy(update={"start": max(unit.start - part.start, 0), "stop": max(unit.stop - part.start, 0)}) for unit in inside]
    stops = {unit.stop for unit in inside}
    ends = None if divided.text.ends is None else tuple(end - part.start for end in divided.text.ends if end in stops)
    return TimedText(tuple(moved), ends)


def _cut_clips(
    source: RecordingSource, transcript: UserTranscript | None, part: RecordingPart, job: Job, stages: Stages, models: Models
) -> PreparedPart:
    """Clips of a part, with what the checks found in them."""
    language, text = _find_language(transcript, job), part.text
    units = list(text.units) if transcript is not None else _transcribe_part(source, part, job.whisper_settings, job, stages, models)
    windows = _embed_windows(source, part, job, stages, models)
    changes = find_voice_changes(windows, part.regions)
    units, ends = _divide_at_changes(source, units, part, changes, job, stages, models)
    inputs = {
        "speech": make_key(make_speech_inputs(source)),
        "units": make_key({"units": [unit.model_dump() for unit in units]}),
        "aligned_ends": ends,
        "whole": bool(transcript and transcript.text),
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
        return extraction.write_clips(job.out, source, pieces, regions, master, language, levels, part.place.start)

    made = stages.run("clips", inputs, CLIPS, cut, extraction.make_existence_check(job.out))
    checked = _rate_clips(_align_clips(made, inputs, job, stages, models), inputs, job, stages, models)
    checked = _check_texts(checked, source, part, job, stages, models)
    windows = windows.move(part.place.start)
    return PreparedPart(checked, _embed_clips(made, inputs, windows, job, stages, models), windows)


def _divide_at_changes(
    source: RecordingSource, units: list[TextUnit], part: RecordingPart, changes: list[int], job: Job, stages: Stages, models: Models
) -> tuple[list[TextUnit], tuple[int, ...] | None]:
    """The units, with utterances over a change of the voice as words, and `TimedText.ends` of these."""
    ends = part.text.ends
    if job.aligner is None or ends is None or not changes:
        return units, ends
    inputs = {
        "form": FORM,
        "speech": make_key(make_speech_inputs(source)),
        "units": make_key({"units": [unit.model_dump() for unit in units]}),
        "ends": ends,
        "changes": changes,
        "aligner": job.aligner.digest,
        "code": recording_alignment.compute_code_digest(),
        **part.describe_place(),
    }

    def divide() -> DividedText:
        return recording_alignment.divide_at_changes(models.aligner, part.sound.speech_audio, units, ends, changes)

    found = stages.run("divided_at_voices", inputs, DIVIDED, divide)
    return found.units, tuple(found.ends)


def _transcribe_part(
    source: RecordingSource, part: RecordingPart, settings: dict[str, Any] | None, job: Job, stages: Stages, models: Models
) -> list[TextUnit]:
    """The text by the Whisper with these settings, positions relative to the part."""
    assert settings is not None  # a recording without a transcript was refused otherwise
    longest = settings.get("longest_window")
    inputs = {"form": FORM, "speech": make_key(make_speech_inputs(source)), "hearing": settings, **part.describe_place()}

    def transcribe() -> list[TextUnit]:
        windows = vad.make_windows(part.regions, part.sound.master, longest)
        step = "transcribing" if part.is_whole else f"transcribing the part from {format_time(part.place.start / MASTER_RATE)}"
        report = partial(report_activity, step)
        return whisper_engine.transcribe_recording(models.whisper, part.sound.speech_audio, windows, job.language, longest, report)

    return stages.run(
        "words",
        inputs,
        UNITS,
        transcribe,
        lambda units: not any(unit.error for unit in units),  # windows that Whisper failed on are retried
    )


def _embed_clips(
    made: list[MeasuredClip], inputs: dict[str, Any], windows: VoiceWindows, job: Job, stages: Stages, models: Models
) -> dict[str, speaker_similarity.Vector]:
    """Speaker vector [H] of each clip file by id; {} without a speaker check. It is the mean over the clip's `windows` (of the recording),
    so no speech passes the encoder twice; only a clip without one, whose words are too short for a window, is encoded itself.

    `inputs`: cache key inputs of the clips.
    """
    if job.encoder is None:
        return {}
    means = {clip.id: windows.average(clip.start, clip.stop) for clip in made if clip.audio}
    found = {identity: mean for identity, mean in means.items() if mean is not None}
    paths = {clip.id: job.out / clip.audio for clip in made if clip.audio and clip.id not in found}
    if not paths:
        return found
    inputs = {
        "form": FORM,
        "clips": make_key(inputs),
        "encoder": job.encoder.digest,
        "without_windows": sorted(paths),
        "products": "fp32",
    }  # older results used TF32 on a GPU
    encoded = stages.run("voices", inputs, VOICES, lambda: speaker_similarity.embed_clips(models.encoder, paths))
    return found | {identity: np.frombuffer(vector, "<f4") for identity, vector in encoded.items()}


def _embed_windows(source: RecordingSource, part: RecordingPart, job: Job, stages: Stages, models: Models) -> VoiceWindows:
    """Speaker vectors of the windows of a part, relative to its start; none without a speaker check."""
    if job.encoder is None:
        return VoiceWindows()
    inputs = {
        "speech": make_key(make_speech_inputs(source)),
        "encoder": job.encoder.digest,
        "windows": describe_windows(),
        **part.describe_place(),
    }

    def embed() -> StoredVoiceWindows:
        return embed_windows(models.encoder, part.sound.master, part.sound.speech_audio, part.regions)

    return read_windows(stages.run("voice_windows", inputs, WINDOWS, embed))


def _align_clips(made: list[MeasuredClip], inputs: dict[str, Any], job: Job, stages: Stages, models: Models) -> list[MeasuredClip]:
    """The clips with their alignment scores; unchanged without an aligner. `inputs`: cache key inputs of the clips, texts included."""
    if job.aligner is None:
        return made
    inputs = {"form": FORM, "clips": make_key(inputs), "aligner": job.aligner.digest}
    clips = {clip.id: (job.out / clip.audio, clip.text) for clip in made if clip.audio}
    found = stages.run("alignment", inputs, ALIGNMENTS, lambda: clip_alignment.align_clips(models.aligner, clips))
    return [
        _add_measures(clip, {"alignment_score": one.score, "unaligned_words": one.unknown}) if (one := found.get(clip.id)) else clip
        for clip in made
    ]


def _rate_clips(made: list[MeasuredClip], inputs: dict[str, Any], job: Job, stages: Stages, models: Models) -> list[MeasuredClip]:
    """The clips with ratings of their files' sound; unchanged without a scorer. `inputs`: cache key inputs of the clips."""
    if job.scorer is None:
        return made
    paths = {clip.id: job.out / clip.audio for clip in made if clip.audio}
    inputs = {"form": FORM, "clips": make_key(inputs), "networks": job.scorer.digest}
    found = stages.run("sound_quality", inputs, RATINGS, lambda: dnsmos.rate_clips(models.scorer, paths))
    return [_add_measures(clip, found[clip.id].model_dump()) if clip.id in found else clip for clip in made]


def _check_texts(
    made: list[MeasuredClip], source: RecordingSource, part: RecordingPart, job: Job, stages: Stages, models: Models
) -> list[MeasuredClip]:
    """The clips with the word error rate between their text and a transcript by Whisper; unchanged if that is not requested."""
    if job.check_settings is None:
        return made
    transcribed, begin = _transcribe_part(source, part, job.check_settings, job, stages, models), part.place.start
    rates = {
        clip.id: word_errors.measure_clip_errors(clip.text, clip.start - begin, clip.stop - begin, transcribed, clip.language)
        for clip in made
        if clip.audio
    }
    return [_add_measures(clip, {"check_wer": rate}) if (rate := rates.get(clip.id)) is not None else clip for clip in made]


def _add_measures(clip: MeasuredClip, measures: Mapping[str, Any]) -> MeasuredClip:
    return clip.model_copy(update={"quality": clip.quality.model_copy(update=dict(measures))})
