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
from overtone.data_prep.pipeline.clip_stages import RecordingPart, embed_part_windows, make_clips, transcribe_part
from overtone.data_prep.pipeline.lazy_audio import LazyAudio, PartAudio
from overtone.data_prep.pipeline.recording_results import (
    DecodedPart,
    DetectedSpeech,
    DividedRecording,
    PreparedPart,
    PreparedRecording,
    TimedText,
    UnusableRecording,
    refuse_recording,
)
from overtone.data_prep.pipeline.recording_run import RecordingRun
from overtone.data_prep.pipeline.speech_detection import SPEECH, FindUtterances, detect_speech, make_speech_inputs
from overtone.data_prep.pipeline.transcript_timing import time_transcript
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.segmentation import recording_parts
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.speakers.windowed_speaker_vectors import (
    join_windows,
)

LEVELS = TypeAdapter(RecordingLevels)


def prepare_recording(run: RecordingRun) -> PreparedRecording:
    """Run all stages, for one part after the other."""
    found = examine_recording(run)
    if isinstance(found, PreparedRecording):
        return found
    return join_parts(run.source, found, [prepare_part(run, found, part) for part in found.parts])


def examine_recording(run: RecordingRun) -> PreparedRecording | DividedRecording:
    """Run the stages that need the whole recording, or all stages if it is not divided into parts. Without a transcript, Whisper
    transcribes; if Whisper is disabled, the recording is rejected.

    A decoder that crashed or stalled may be the machine's fault, so that result is not stored and the next run tries again.
    """
    source, job = run.source, run.job
    if source.problem:
        return refuse_recording(source, "unreadable", source.problem, 0)
    if source.synthetic:
        return refuse_recording(source, "synthetic", f"the file says {source.synthetic!r}; --allow-synthetic uses it all the same", 0)
    divisible = not run.has_one_text or job.locator is not None
    sound = LazyAudio(source.path, run.models, run.samples if divisible else None, job.part_seconds, source.channels)
    try:
        speech = run.stages.run(
            "speech",
            make_speech_inputs(source),
            SPEECH,
            lambda: detect_speech(sound, run.models, job.part_seconds, _plan_early(run), source.is_split),
        )
        if isinstance(speech, UnusableRecording):
            return refuse_recording(source, speech.reason, speech.detail, round(speech.seconds * MASTER_RATE))
        sound.track = speech.track
        length = speech.track.length
        if not speech.regions:
            detail = f"no speech found in {length / MASTER_RATE:.2f} s"
            notes, channels = _join_notes(speech, TimedText()), speech.track.channel
            return PreparedRecording(source, length, warning=notes, refused="no_speech", detail=detail, channels=channels)
        if run.transcript is None and job.whisper_settings is None:
            return refuse_recording(source, "no_transcript", "no transcript next to the recording", length)
        text = time_transcript(run, run.transcript, speech, sound) if run.transcript else TimedText()
        spoken = [Region(unit.start, unit.stop) for unit in text.units]
        divisible = divisible and not (run.has_one_text and text.ends is None)  # a single text without word times
        found = recording_parts.list_parts(speech.regions, length, job.part_seconds, spoken) if divisible else [Region(0, length)]
        if len(found) == 1:
            whole = RecordingPart(sound=sound, place=found[0], is_whole=True, levels=None, text=text, regions=speech.regions)
            return _make_recording(source, speech, text, [make_clips(run, whole)])
        inputs = {"speech": run.speech_key, "code": extraction.compute_code_digests()}
        levels = run.stages.run("levels", inputs, LEVELS, lambda: extraction.measure_levels(sound.master, speech.regions))
        return DividedRecording(speech, levels, found, text)
    except AudioError as error:
        return refuse_recording(source, error.reason, error.detail, round(error.seconds * MASTER_RATE))


def store_samples(run: RecordingRun, divided: DividedRecording) -> None:
    """Decode a divided recording for `prepare_part`, unless its samples are stored. Raises `AudioError`."""
    LazyAudio(run.source.path, run.models, run.samples).store(divided.speech.track)


def prepare_part(run: RecordingRun, divided: DividedRecording, place: Region) -> PreparedPart:
    """Run the stages after speech detection for the part at `place`: as for a short recording, with the levels of the whole one."""
    sound = PartAudio(run.samples, divided.speech.track, place)
    text = _select_utterances(divided, place)
    regions = recording_parts.select_regions(divided.speech.regions, place)
    return make_clips(run, RecordingPart(sound=sound, place=place, is_whole=False, levels=divided.levels, text=text, regions=regions))


def begin_part(run: RecordingRun, decoded: DecodedPart) -> None:
    """Run the stages that need only one part of a recording, and not the user's transcript, while the rest is being decoded.
    `prepare_part` uses their stored results. Does nothing if the samples are gone, because decoding failed."""
    folder = decoded.folder if decoded.folder.exists() else run.samples
    part = RecordingPart(
        sound=PartAudio(folder, None, decoded.place),
        place=decoded.place,
        is_whole=False,
        levels=None,
        text=TimedText(),
        regions=decoded.regions,
    )
    with contextlib.suppress(FileNotFoundError):
        if (settings := run.job.whisper_settings or run.job.check_settings) is not None:
            transcribe_part(run, part, settings)
        embed_part_windows(run, part)


def join_parts(source: RecordingSource, divided: DividedRecording, prepared: list[PreparedPart]) -> PreparedRecording:
    """Return the recording that consists of all these parts, in order."""
    return _make_recording(source, divided.speech, divided.text, prepared)


def _plan_early(run: RecordingRun) -> FindUtterances | None:
    """Return the function that `detect_speech` needs to begin parts before the recording is decoded; None: the parts depend on the times of
    the text.

    If the times of the transcript are moved later, the parts may end elsewhere, and what was begun is not used.
    """
    transcript, job = run.transcript, run.job
    if transcript is None:
        return None if job.whisper_settings is None else lambda _length: []
    if job.locator is not None or (job.encoder is None and job.check_settings is None):
        return None
    language = run.language or AUTO
    return lambda length: [Region(unit.start, unit.stop) for unit in transcript.make_units(length, language)]


def _make_recording(source: RecordingSource, speech: DetectedSpeech, text: TimedText, prepared: list[PreparedPart]) -> PreparedRecording:
    return PreparedRecording(
        source=source,
        total=speech.track.length,
        regions=tuple(speech.regions),
        clips=tuple(clip for part in prepared for clip in part.clips),
        warning=_join_notes(speech, text),
        damage=speech.track.warning,
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
    """Return the utterances with their middle in `part`, relative to its start; those after the recording's end belong to the last part."""
    stop = part.stop if part != divided.parts[-1] else maxsize
    inside = [unit for unit in divided.text.units if part.start <= (unit.start + unit.stop) // 2 < stop]
    moved = [unit.model_copy(update={"start": max(unit.start - part.start, 0), "stop": max(unit.stop - part.start, 0)}) for unit in inside]
    stops = {unit.stop for unit in inside}
    ends = None if divided.text.ends is None else tuple(end - part.start for end in divided.text.ends if end in stops)
    return TimedText(tuple(moved), ends)
