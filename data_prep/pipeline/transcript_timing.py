"""The user's transcript of one recording with times that fit its sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from pydantic import TypeAdapter

from overtone.data_prep.alignment import recording_alignment
from overtone.data_prep.alignment.recording_alignment import LocatedText
from overtone.data_prep.manifest import AUTO
from overtone.data_prep.pipeline.lazy_audio import LazyAudio
from overtone.data_prep.pipeline.recording_results import DetectedSpeech, TimedText
from overtone.data_prep.pipeline.recording_run import RecordingRun
from overtone.data_prep.pipeline.stage_cache import make_key
from overtone.data_prep.recordings.user_transcripts import UserTranscript
from overtone.data_prep.segmentation import subtitle_repair, subtitle_sync, vad
from overtone.data_prep.segmentation.clip_segmentation import TextUnit
from overtone.data_prep.segmentation.subtitle_repair import TimingRepair
from overtone.data_prep.segmentation.subtitle_sync import TranscriptTiming
from overtone.data_prep.segmentation.vad import Region

FORM = 1
"""Version of the results: increase it when they change. The code of the alignment is part of the key."""
REPAIRED: TypeAdapter[TimingRepair] = TypeAdapter(TimingRepair)
LOCATED: TypeAdapter[LocatedText] = TypeAdapter(LocatedText)


def time_transcript(run: RecordingRun, transcript: UserTranscript, speech: DetectedSpeech, sound: LazyAudio) -> TimedText:
    """Return the user's transcript with corrected times: moved if all of it is late; without cues in whose time nobody speaks, if the
    others fit the speech; with the times of its words, where an aligner can find them."""
    job = run.job
    units = transcript.make_units(speech.track.length, run.language or AUTO)
    has_cues = bool(transcript.utterances) and not transcript.words  # words do not begin after pauses
    repair = _repair_times(run, units, speech) if has_cues else TimingRepair()
    delay = subtitle_sync.measure_delay(units, speech.regions) if has_cues and not repair.segments else 0.0
    units = repair.units or (subtitle_sync.shift_units(units, delay) if delay else units)
    # A model that checks each clip is better evidence than few cues.
    is_checked = job.aligner is not None or job.check_settings is not None
    timings = _check_segments(units, repair, speech.regions) if has_cues else ()
    timings = () if is_checked and len(units) < subtitle_sync.FEW_CUES else timings
    fits = bool(timings) and all(timing.is_trusted for timing in timings)
    unspoken = subtitle_sync.find_unspoken(units, speech.regions) if fits else []
    units = [unit for unit in units if unit not in unspoken]
    repaired = subtitle_repair.describe_repair(repair) if repair.segments else ""
    note = "; ".join(filter(None, [repaired, recording_alignment.describe_unspoken([unit.text.strip() for unit in unspoken])]))
    unchecked = has_cues and not timings and not is_checked
    short = Region(speech.regions[0].start, speech.regions[-1].stop).seconds <= job.lengths.longest
    timed = TimedText(units=tuple(units), note=note, delay=delay, timings=timings, has_unchecked_times=unchecked, repair=repair)
    if job.locator is None or (transcript.text and short):  # a text that is short enough for one clip has nothing to locate
        return timed
    known: recording_alignment.Times = "right" if fits else "approximate"
    times: recording_alignment.Times = "unknown" if transcript.text else known
    inputs = {
        "form": FORM,
        "speech": run.speech_key,
        "units": make_key({"units": [unit.model_dump() for unit in units]}),
        "aligner": job.locator.digest,
        "longest": job.lengths.longest,
        "times": times,
        "code": recording_alignment.compute_code_digest(),
    }

    def locate() -> LocatedText:
        windows = vad.make_windows(speech.regions, sound.master)
        return recording_alignment.locate_utterances(run.models.aligner, sound.speech_audio, windows, units, job.lengths.longest, times)

    located = run.stages.run("located", inputs, LOCATED, locate)
    notes = "; ".join(filter(None, [note, located.note]))
    return replace(timed, units=tuple(located.units), ends=tuple(located.ends), note=notes)


def _repair_times(run: RecordingRun, units: list[TextUnit], speech: DetectedSpeech) -> TimingRepair:
    """Return the repair of times that do not fit the speech, or not all; without segments if they fit, are only late, or nothing is
    proven."""
    if len(units) < 2 * subtitle_repair.WINDOW_CUES:
        return TimingRepair()

    def repair() -> TimingRepair:
        delay = subtitle_sync.measure_delay(units, speech.regions)
        before = subtitle_sync.check_timing(subtitle_sync.shift_units(units, delay), speech.regions)
        found = subtitle_repair.repair_times(units, speech.regions)
        needed = len(found.segments) > 1 or found.has_other_ends or not all(timing.is_trusted for timing in before)
        better = _count_trusted(_check_segments(found.units, found, speech.regions)) >= _count_trusted(before) - found.left_out
        return found if found.segments and needed and better else TimingRepair()

    inputs = {
        "speech": run.speech_key,
        "units": make_key({"units": [unit.model_dump() for unit in units]}),
        "code": [subtitle_repair.compute_code_digest(), subtitle_sync.compute_code_digest()],
    }
    return run.stages.run("repaired_times", inputs, REPAIRED, repair)


def _check_segments(units: list[TextUnit], repair: TimingRepair, regions: list[Region]) -> tuple[TranscriptTiming, ...]:
    """Return the timing of the cues in blocks, none of which reaches over a break."""
    counts = [segment.cues for segment in repair.segments] or [len(units)]
    edges = [sum(counts[:index]) for index in range(len(counts) + 1)]
    parts = [units[start:stop] for start, stop in pairwise(edges)]
    return tuple(timing for part in parts for timing in subtitle_sync.check_timing(part, regions))


def _count_trusted(timings: Sequence[TranscriptTiming]) -> int:
    """Return the number of cues in trusted blocks."""
    return sum(timing.cues for timing in timings if timing.is_trusted)
