"""Clips of a recording: cut, measured and written as FLAC files with one gain per recording. Selection happens later."""

from __future__ import annotations

import functools
import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from data_prep.audio import bandwidth
from data_prep.audio.waveform import MASTER_RATE, Audio, convert_position, encode_flac, fade_edges
from data_prep.clips import loudness, measurements
from data_prep.manifest import AUTO, Quality
from data_prep.recordings.recording_files import RecordingSource
from data_prep.recordings.user_transcripts import UserTranscript
from data_prep.segmentation import segment
from data_prep.segmentation.segment import Lengths, Piece, TextUnit
from data_prep.segmentation.vad import Region
from data_prep.transcription import whisper_engine
from finetune.storage import files

UTTERANCE_TOLERANCE = 1.0
"""Tolerance of the times of a transcript in seconds, when matching them to pauses."""


class MeasuredClip(BaseModel):
    """A measured piece of a recording, before selection."""

    model_config = ConfigDict(frozen=True)

    id: str
    """Digest of the recording, first and last millisecond."""
    audio: str | None
    """Path relative to the dataset; None for a piece without text, which gets no file."""
    start: int
    """Samples at `MASTER_RATE`."""
    stop: int
    text: str
    language: str
    quality: Quality
    """Measures of the audio before the gain."""
    gain_db: float
    """Gain applied to the file, relative to the recording."""

    @property
    def seconds(self) -> float:
        return (self.stop - self.start) / MASTER_RATE


@functools.cache
def compute_code_digests() -> tuple[str, ...]:
    """Digests of the source files that determine the clips: part of the cache key, so that results of other code are not reused."""
    return tuple(
        files.digest(Path(module.__file__ or "")) for module in (segment, measurements, bandwidth, loudness, sys.modules[__name__])
    )


def divide_recording(
    transcript: UserTranscript | None, units: list[TextUnit], regions: list[Region], master: Audio, lengths: Lengths
) -> list[Piece]:
    """Cut a recording into pieces. Transcripts keep their segmentation; their times are less accurate than Whisper's."""
    length = len(master.samples)
    if transcript is not None and transcript.text:
        cuts = segment.make_outer_cuts(units, regions, length)
    else:
        cuts = segment.find_cuts(units, regions, length, UTTERANCE_TOLERANCE if transcript else whisper_engine.WORD_TOLERANCE)
    return segment.choose_pieces(cuts, units, master, lengths, segment.score_utterance_end if transcript else segment.score_sentence_end)


def write_clips(
    out: Path, source: RecordingSource, pieces: list[Piece], regions: list[Region], master: Audio, language: str | None
) -> list[MeasuredClip]:
    """Measure all pieces; write those with text, with one gain for the recording. `language` None: as detected by Whisper."""
    noise = measurements.measure_noise_power(master.samples, regions)
    of_all = {"bandwidth_hz": float(bandwidth.measure_bandwidth(master.samples, MASTER_RATE))}
    gain = loudness.compute_gain(master, regions)
    clips = []
    for piece in pieces:
        clip = MeasuredClip(
            id=make_clip_id(source, piece),
            audio=make_clip_path(source, piece) if piece.text else None,
            start=piece.start,
            stop=piece.stop,
            text=piece.text,
            language=language or _choose_language(piece),
            quality=measurements.measure_clip(master.samples, piece, regions, noise).model_copy(update=of_all),
            gain_db=round(20 * math.log10(gain), 2),
        )
        if clip.audio:
            louder = Audio(master.samples[piece.start : piece.stop] * np.float32(gain), MASTER_RATE)
            files.write_bytes(out / clip.audio, encode_flac(fade_edges(louder)))
        clips.append(clip)
    return clips


def make_clip_id(source: RecordingSource, piece: Piece) -> str:
    """Clip id: digest prefix of the recording, start and stop in milliseconds; independent of text and selection."""
    return (
        f"{source.digest[:12]}_{convert_position(piece.start, MASTER_RATE, 1000):08d}_{convert_position(piece.stop, MASTER_RATE, 1000):08d}"
    )


def make_clip_path(source: RecordingSource, piece: Piece) -> str:
    """Path of a clip file relative to the dataset."""
    return f"clips/{source.digest[:2]}/{make_clip_id(source, piece)}.flac"


def make_existence_check(out: Path) -> Callable[[list[MeasuredClip]], bool]:
    """A predicate: whether all clip files of a stored result still exist."""
    return lambda clips: all((out / clip.audio).is_file() for clip in clips if clip.audio)


def _choose_language(piece: Piece) -> str:
    """The most frequent language that Whisper detected."""
    languages = Counter(unit.heard.language for unit in piece.units if unit.heard)
    return max(sorted(languages), key=languages.__getitem__) if languages else AUTO
