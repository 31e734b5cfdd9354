"""The first stage of a recording: decode it, check that the audio is usable, and detect speech."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from overtone.data_prep.audio import sandboxed_decoder
from overtone.data_prep.audio.stream_reader import AudioError
from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio, convert_position
from overtone.data_prep.parallel import process_pool
from overtone.data_prep.pipeline.lazy_audio import LazyAudio
from overtone.data_prep.pipeline.recording_results import DecodedPart, DetectedSpeech, UnusableRecording
from overtone.data_prep.pipeline.stage_cache import NotStoredError, StoredStages
from overtone.data_prep.pipeline.worker_activity import report_activity
from overtone.data_prep.pipeline.worker_models import Models
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.segmentation import channel_voices, recording_parts, vad
from overtone.data_prep.segmentation.vad import Region, SpeechScan

FORM = 3
"""Version of the results: increase it when they change."""
SAMPLES = "samples"
"""Folder for the samples of recordings that are divided into parts, 576 MB an hour, until all parts are finished."""
OF_THE_MACHINE = ("decoder_crashed", "decoder_stalled")
"""Reasons that may be caused by the machine and are not stored."""
PEOPLE_ON_CHANNELS = "people_on_channels"
"""Reason for rejecting a recording of two people on two channels."""
FindUtterances = Callable[[int], list[Region]]
"""Function from the number of samples of a recording to the utterances of the user's transcript, sorted by start."""
SPEECH: TypeAdapter[DetectedSpeech | UnusableRecording] = TypeAdapter(DetectedSpeech | UnusableRecording)


def locate_samples(source: RecordingSource, stages: Path) -> Path:
    """Return the folder of the decoded samples of a divided recording."""
    return stages / SAMPLES / source.digest


def load_stored_speech(source: RecordingSource, stages: StoredStages) -> DetectedSpeech | UnusableRecording | None:
    """Return the stored result of the speech detection stage, or None."""
    try:
        return stages.run("speech", make_speech_inputs(source), SPEECH, lambda: UnusableRecording(reason="", detail="", seconds=0.0))
    except NotStoredError:
        return None


def make_speech_inputs(source: RecordingSource) -> dict[str, object]:
    """Return the cache key inputs of the speech detection stage."""
    return {"form": FORM, "recording": source.digest, "channels": source.channels, "split": source.is_split, "vad": vad.describe_settings()}


def detect_speech(
    sound: LazyAudio, models: Models, part_seconds: float, early: FindUtterances | None, is_split: bool = False
) -> DetectedSpeech | UnusableRecording:
    """Decode, choose the channels, check that the audio is usable, detect speech; in a long recording while it is decoded. `early`: finds
    the utterances, so that each part is sent to the parent process as a `DecodedPart` as soon as it is known; None: no part is sent.
    `is_split`: the other channels are other people, whose speech is left out where this channel picks it up."""

    def report(done: int) -> None:
        report_activity("detecting speech", done / SPEECH_RATE)

    try:
        find = partial(_find_channel_speech, models)
        sound.track, problem = channel_voices.settle_channels(sound.track, sound.load_speech_audio, find)
        if problem:
            return UnusableRecording(reason=PEOPLE_ON_CHANNELS, detail=problem, seconds=sound.track.length / MASTER_RATE)
        scan = None
        if sound.is_divided and models.vad.network is not None:
            scan = SpeechScan(models.vad.network)
            utterances = None if early is None or is_split else early(sound.track.length)
            sound.store(sound.track, _PartFinder(scan, sound.track.length, part_seconds, utterances).follow)
        regions = vad.find_speech(models.vad, sound.speech_audio, len(sound.master.samples), report, scan)
        return _leave_out_others(sound, models, regions) if is_split else DetectedSpeech(track=sound.track, regions=regions)
    except AudioError as error:
        if error.reason in OF_THE_MACHINE:
            raise
        return UnusableRecording(reason=error.reason, detail=error.detail, seconds=error.seconds)


def _leave_out_others(sound: LazyAudio, models: Models, regions: list[Region]) -> DetectedSpeech | UnusableRecording:
    """Return the speech of the person on this channel."""
    channels = channel_voices.examine_channels(sound.track, sound.load_speech_audio, partial(_find_channel_speech, models))
    index = sound.track.weights.index(1.0)
    if channel_voices.repeats_others(channels, index):
        detail = f"channel {sound.track.channel} has no speech of its own; another channel has the same"
        return UnusableRecording(reason="duplicate", detail=detail, seconds=sound.track.length / MASTER_RATE)
    own = channel_voices.drop_bleed(regions, channels, index)
    lost = sum(region.seconds for region in regions) - sum(region.seconds for region in own)
    note = f"{lost:.1f} s of speech left out that is much louder on another channel" if lost else ""
    return DetectedSpeech(track=sound.track.model_copy(update={"channel_note": note}), regions=own)


def _find_channel_speech(models: Models, audio: Audio) -> list[Region]:
    return vad.find_speech(models.vad, audio, convert_position(len(audio.samples), SPEECH_RATE, MASTER_RATE))


class _PartFinder:
    """Detects speech in the samples of a recording that is being decoded, and finds its parts."""

    def __init__(self, scan: SpeechScan, length: int, part_seconds: float, utterances: list[Region] | None) -> None:
        """`utterances`: those of the user's transcript, inside of which no part should end; None: send no part."""
        self._scan, self._length, self._seconds, self._utterances = scan, length, part_seconds, utterances
        self._start = 0

    def follow(self, folder: Path) -> None:
        """Process the new samples in the temporary `folder`."""
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
