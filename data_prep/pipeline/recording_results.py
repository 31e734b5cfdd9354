"""Inputs and results of the stages of one recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from overtone.data_prep.alignment.interface import Aligner
from overtone.data_prep.audio.waveform import Track
from overtone.data_prep.audio_codecs.interface import SpeakerEncoder
from overtone.data_prep.clips import speaker_similarity
from overtone.data_prep.clips.dnsmos import SoundScorer
from overtone.data_prep.clips.extraction import MeasuredClip, RecordingLevels
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.segmentation import recording_parts
from overtone.data_prep.segmentation.clip_segmentation import Lengths, TextUnit
from overtone.data_prep.segmentation.subtitle_repair import TimingRepair
from overtone.data_prep.segmentation.subtitle_sync import TranscriptTiming
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.speakers.voice_clusters import MOST_VOICES
from overtone.data_prep.speakers.windowed_speaker_vectors import VoiceWindows
from overtone.data_prep.transcription.packed_transcription import WhisperSettings


@dataclass(frozen=True)
class Job:
    """Settings of a run, the same for all recordings."""

    out: Path
    lengths: Lengths
    language: str | None
    """Full name; None if Whisper detects it, or a transcript does not name it."""
    whisper_settings: WhisperSettings | None
    """`whisper_engine.describe_settings`, or None with transcripts."""
    encoder: SpeakerEncoder | None = None
    """Encoder of the speaker check, if it is requested."""
    scorer: SoundScorer | None = None
    """Scorer of the sound quality, if it is to be rated."""
    aligner: Aligner | None = None
    """Aligner that checks the texts against the sound, if that is requested."""
    check_settings: WhisperSettings | None = None
    """`whisper_engine.describe_settings` of the Whisper that checks the user's transcripts, if that is requested."""
    most_voices: int = MOST_VOICES
    """Maximum number of voices of one recording, where clips are cut."""
    part_seconds: float = field(default_factory=lambda: recording_parts.PART_SECONDS)
    """Target duration of the parts of a long recording."""
    aligns_clips_alone: bool = False
    """True if the aligner only checks clips: it was not requested, so it changes no times."""

    @property
    def locator(self) -> Aligner | None:
        """The aligner that also finds the times of words in a whole recording."""
        return None if self.aligns_clips_alone else self.aligner


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
    """The part of a damaged file that is missing; included in `warning`."""
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
    """Result of comparing the cues of the user's transcript with the starts of speech, block by block; empty without cues, or with too
    few."""
    has_unchecked_times: bool = False
    """True if the user's transcript has too few cues for `timings`, and no model checks its clips."""
    channels: str = ""
    """Channels that are used: `mono`, `mix`, or the name of one of several; empty if it is not known."""
    repair: TimingRepair = field(default_factory=TimingRepair)
    """Repair of the times of the user's transcript."""


@dataclass(frozen=True)
class TimedText:
    """The user's transcript with repaired times; empty if Whisper transcribes."""

    units: tuple[TextUnit, ...] = ()
    ends: tuple[int, ...] | None = None
    """`stop` of the units that end an utterance; None: the times are those of the transcript, not of an aligner."""
    note: str = ""
    """Note on what was left out, and what the aligner changed."""
    delay: float = 0.0
    timings: tuple[TranscriptTiming, ...] = ()
    has_unchecked_times: bool = False
    repair: TimingRepair = field(default_factory=TimingRepair)


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
    """Regions of speech, relative to the start of the part."""
    folder: Path
    """Folder of the samples, until the recording is decoded."""


@dataclass(frozen=True)
class PreparedPart:
    """Result of all stages for one part of a recording; positions are those of the recording."""

    clips: list[MeasuredClip]
    voices: Mapping[str, speaker_similarity.Vector]
    windows: VoiceWindows


def refuse_recording(source: RecordingSource, reason: str, detail: str, total: int) -> PreparedRecording:
    """Return a recording rejected as a whole, with all its `total` samples."""
    return PreparedRecording(source, total, (Region(0, total),), refused=reason, detail=detail)
