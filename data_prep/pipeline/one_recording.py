"""Pipeline for one recording, in stages with stored results: detect speech, get the text, cut and measure clips. Optional: embed speakers,
rate the sound, align the texts with the sound, check them with a Whisper.

A long recording is divided into parts after speech detection; the other stages process a part as they process a short recording.
Every piece with text becomes a clip file. Selection happens later, so rules and review decisions may change without transcribing again.
"""

from __future__ import annotations

import contextlib
from sys import maxsize

from pydantic import TypeAdapter

from overtone.data_prep.audio.stream_reader import AudioError
from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.clips import extraction
from overtone.data_prep.clips.extraction import RecordingLevels
from overtone.data_prep.manifest import AUTO
from overtone.data_prep.pipeline.lazy_audio import LazyAudio, PartAudio
from overtone.data_prep.pipeline.part_stages import RecordingPart, cut_clips, embed_part_windows, transcribe_part
from overtone.data_prep.pipeline.recording_results import (
    DecodedPart,
    DetectedSpeech,
    DividedRecording,
    Job,
    PreparedPart,
    PreparedRecording,
    TimedText,
    UnusableRecording,
    refuse_recording,
)
from overtone.data_prep.pipeline.speech_detection import SPEECH, FindUtterances, detect_speech, locate_samples, make_speech_inputs
from overtone.data_prep.pipeline.stage_cache import Stages, make_key
from overtone.data_prep.pipeline.transcript_timing import find_language, time_transcript
from overtone.data_prep.pipeline.worker_models import Models
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.recordings.user_transcripts import UserTranscript
from overtone.data_prep.segmentation import recording_parts
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.speakers.windowed_speaker_vectors import (
    join_windows,
)

LEVELS = TypeAdapter(RecordingLevels)


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
    divisible = not (transcript and transcript.text) or job.locator is not None
    folder = locate_samples(source, stages.folder) if divisible else None
    sound = LazyAudio(source.path, models, folder, job.part_seconds, source.channels)
    try:
        speech = stages.run(
            "speech",
            make_speech_inputs(source),
            SPEECH,
            lambda: detect_speech(sound, models, job.part_seconds, _plan_early(transcript, job), source.is_split),
        )
        if isinstance(speech, UnusableRecording):
            return refuse_recording(source, speech.reason, speech.detail, round(speech.seconds * MASTER_RATE))
        sound.track = speech.track
        length = speech.track.length
        if not speech.regions:
            detail = f"no speech found in {length / MASTER_RATE:.2f} s"
            notes, channels = _join_notes(speech, TimedText()), speech.track.channel
            return PreparedRecording(source, length, warning=notes, refused="no_speech", detail=detail, channels=channels)
        if transcript is None and job.whisper_settings is None:
            return refuse_recording(source, "no_transcript", "no transcript next to the recording", length)
        text = time_transcript(source, transcript, speech, sound, job, stages, models) if transcript else TimedText()
        spoken = [Region(unit.start, unit.stop) for unit in text.units]
        divisible = divisible and not (transcript and transcript.text and text.ends is None)  # a single text without word times
        found = recording_parts.list_parts(speech.regions, length, job.part_seconds, spoken) if divisible else [Region(0, length)]
        if len(found) == 1:
            whole = RecordingPart(sound, found[0], True, None, text, speech.regions)
            return _make_recording(source, speech, text, [cut_clips(source, transcript, whole, job, stages, models)])
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
    return cut_clips(source, transcript, whole, job, stages, models)


def begin_part(source: RecordingSource, part: DecodedPart, job: Job, stages: Stages, models: Models) -> None:
    """Run the stages that need no more than a part of a recording, and no text of the user's, while the rest is being decoded:
    `prepare_part` uses their stored results. Does nothing if the samples are gone, because decoding failed."""
    folder = part.folder if part.folder.exists() else locate_samples(source, stages.folder)
    sound = PartAudio(folder, None, part.place)
    known = RecordingPart(sound, part.place, False, None, TimedText(), part.regions)
    with contextlib.suppress(FileNotFoundError):
        if (settings := job.whisper_settings or job.check_settings) is not None:
            transcribe_part(source, known, settings, job, stages, models)
        embed_part_windows(source, known, job, stages, models)


def join_parts(source: RecordingSource, divided: DividedRecording, prepared: list[PreparedPart]) -> PreparedRecording:
    """The recording of all its parts, in order."""
    return _make_recording(source, divided.speech, divided.text, prepared)


def _plan_early(transcript: UserTranscript | None, job: Job) -> FindUtterances | None:
    """Return the function that `detect_speech` needs to begin parts before the recording is decoded; None: the parts depend on the times of
    the text.

    If the times of the transcript are moved later, the parts may end elsewhere, and what was begun is not used.
    """
    if transcript is None:
        return None if job.whisper_settings is None else lambda _length: []
    if job.locator is not None or (job.encoder is None and job.check_settings is None):
        return None
    language = find_language(transcript, job) or AUTO
    return lambda length: [Region(unit.start, unit.stop) for unit in transcript.make_units(length, language)]


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
        channels=speech.track.channel,
        repair=text.repair,
    )


def _join_notes(speech: DetectedSpeech, text: TimedText) -> str:
    """Return the note for the user about a recording that is used."""
    return "; ".join(filter(None, [speech.track.warning, speech.track.note, speech.track.channel_note, text.note]))


def _select_utterances(divided: DividedRecording, part: Region) -> TimedText:
    """The utterances with their middle in `part`, relative to its start; those after the recording's end belong to the last part."""
    stop = part.stop if part != divided.parts[-1] else maxsize
    inside = [unit for unit in divided.text.units if part.start <= (unit.start + unit.stop) // 2 < stop]
    moved = [unit.model_copy(update={"start": max(unit.start - part.start, 0), "stop": max(unit.stop - part.start, 0)}) for unit in inside]
    stops = {unit.stop for unit in inside}
    ends = None if divided.text.ends is None else tuple(end - part.start for end in divided.text.ends if end in stops)
    return TimedText(tuple(moved), ends)
