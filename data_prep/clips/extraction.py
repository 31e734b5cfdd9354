"""Clips of a recording: cut, measured and written as FLAC files with one gain per recording. Selection happens later."""

from __future__ import annotations

import base64
import functools
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from overtone.data_prep import number_words
from overtone.data_prep.audio import bandwidth
from overtone.data_prep.audio.waveform import MASTER_RATE, Audio, convert_position, encode_flac, fade_edges
from overtone.data_prep.clips import fingerprints, loudness, measurements, overlapped_speech, speaking_rate
from overtone.data_prep.manifest import AUTO, Quality
from overtone.data_prep.recordings.recording_files import RecordingSource
from overtone.data_prep.recordings.user_transcripts import UserTranscript
from overtone.data_prep.segmentation import clip_segmentation
from overtone.data_prep.segmentation.clip_segmentation import Lengths, Piece, TextUnit
from overtone.data_prep.segmentation.vad import Region
from overtone.data_prep.transcription import whisper_engine
from overtone.finetune.storage import files
from overtone.finetune.storage.synthetic_audio_mark import make_comment_of_copy

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
    fingerprint: Base64Bytes = Field(default=b"", repr=False)
    """Words of `fingerprints.compute_fingerprint` as little-endian 32-bit integers, in base64."""

    @property
    def seconds(self) -> float:
        return (self.stop - self.start) / MASTER_RATE


class RecordingLevels(BaseModel):
    """Measures of a whole recording that all its clips share."""

    model_config = ConfigDict(frozen=True)

    noise: float | None
    """Median power outside speech (`measurements.measure_noise_power`)."""
    bandwidth_hz: float
    gain: float
    """Factor applied to the samples (`loudness.compute_gain`)."""


@functools.cache
def compute_code_digests() -> tuple[str, ...]:
    """Return the digests of the source files that determine the clips: part of the cache key, so that results of other code are not
    reused."""
    modules = (
        *(clip_segmentation, measurements, speaking_rate, number_words, overlapped_speech, bandwidth, fingerprints, loudness),
        sys.modules[__name__],
    )
    return tuple(files.digest(path) for path in (*(Path(module.__file__ or "") for module in modules), overlapped_speech.WEIGHTS))


def divide_recording(
    transcript: UserTranscript | None,
    units: list[TextUnit],
    regions: list[Region],
    master: Audio,
    lengths: Lengths,
    voice_changes: Sequence[int] = (),
    aligned_ends: Sequence[int] | None = None,
) -> list[Piece]:
    """Cut a recording into pieces. Transcripts keep their segmentation; their times are less accurate than Whisper's.

    `voice_changes`: samples, ascending, over which no piece should reach. `aligned_ends`: `stop` of the units that end an utterance, for a
    transcript with aligned times.
    """
    length = len(master.samples)
    if aligned_ends is not None:
        ends = frozenset(aligned_ends)
        cuts = clip_segmentation.find_cuts(units, regions, length, whisper_engine.WORD_TOLERANCE)
        return clip_segmentation.choose_pieces(
            cuts,
            units,
            master,
            lengths,
            lambda unit: clip_segmentation.score_utterance_end(unit) if unit.stop in ends else clip_segmentation.score_sentence_end(unit),
            voice_changes,
        )
    of_utterances = transcript is not None and not transcript.words
    if transcript is not None and transcript.text:
        cuts = clip_segmentation.make_outer_cuts(units, regions, length)
    else:
        cuts = clip_segmentation.find_cuts(units, regions, length, UTTERANCE_TOLERANCE if of_utterances else whisper_engine.WORD_TOLERANCE)
    bonus = clip_segmentation.score_utterance_end if of_utterances else clip_segmentation.score_sentence_end
    return clip_segmentation.choose_pieces(cuts, units, master, lengths, bonus, voice_changes)


def measure_levels(master: Audio, regions: list[Region]) -> RecordingLevels:
    """Return the measures of the whole recording. `regions`: its speech."""
    return RecordingLevels(
        noise=measurements.measure_noise_power(master.samples, regions),
        bandwidth_hz=float(bandwidth.measure_bandwidth(master.samples, MASTER_RATE)),
        gain=loudness.compute_gain(master, regions),
    )


def write_clips(
    out: Path,
    source: RecordingSource,
    pieces: list[Piece],
    regions: list[Region],
    master: Audio,
    language: str | None,
    levels: RecordingLevels,
    offset: int = 0,
) -> list[MeasuredClip]:
    """Measure all pieces; write those with text, with one gain for the recording. `language` None: the one that Whisper detected.

    `master` may be a part of the recording that starts at `offset`; `pieces` and `regions` are relative to it, clips to the recording.
    """
    clips, comment = [], make_comment_of_copy(source.path)
    for piece in pieces:
        heard = Counter(unit.heard.language for unit in piece.units if unit.heard)
        spoken = language or max(sorted(heard), key=heard.__getitem__, default=AUTO)
        place = Piece(piece.start + offset, piece.stop + offset, piece.units)
        clip = MeasuredClip(
            id=make_clip_id(source, place),
            audio=make_clip_path(source, place) if piece.text else None,
            start=place.start,
            stop=place.stop,
            text=piece.text,
            language=spoken,
            quality=measurements.measure_clip(master.samples, piece, regions, levels.noise, spoken).model_copy(
                update={"bandwidth_hz": levels.bandwidth_hz}
            ),
            gain_db=round(20 * math.log10(levels.gain), 2),
            fingerprint=base64.b64encode(fingerprints.compute_fingerprint(master.samples, piece.start, piece.stop).astype("<u4").tobytes()),
        )
        if clip.audio:
            louder = Audio(master.samples[piece.start : piece.stop] * np.float32(levels.gain), MASTER_RATE)
            files.write_bytes(out / clip.audio, encode_flac(fade_edges(louder), comment))
        clips.append(clip)
    return clips


def make_clip_id(source: RecordingSource, piece: Piece) -> str:
    """Return the clip id: digest prefix of the recording, start and stop in milliseconds; independent of text and selection."""
    return (
        f"{source.digest[:12]}_{convert_position(piece.start, MASTER_RATE, 1000):08d}_{convert_position(piece.stop, MASTER_RATE, 1000):08d}"
    )


def make_clip_path(source: RecordingSource, piece: Piece) -> str:
    """Return the path of a clip file relative to the dataset."""
    return f"clips/{source.digest[:2]}/{make_clip_id(source, piece)}.flac"


def make_existence_check(out: Path) -> Callable[[list[MeasuredClip]], bool]:
    """Return a predicate: True if all clip files of a stored result still exist."""
    return lambda clips: all((out / clip.audio).is_file() for clip in clips if clip.audio)
