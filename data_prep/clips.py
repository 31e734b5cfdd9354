"""Pieces of a recording: divided, measured, written at one loudness, and not yet judged."""

from __future__ import annotations

import functools
import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from data_prep import bandwidth, loudness, measure, segment, transcribe
from data_prep.audio import MASTER_RATE, Audio, faded, flac, to_rate
from data_prep.manifest import AUTO
from data_prep.score import Quality
from data_prep.segment import Lengths, Piece, Unit
from data_prep.sources import Source
from data_prep.transcripts import Transcript
from data_prep.vad import Region
from finetune import files

UTTERANCE_TOLERANCE = 1.0
"""Seconds by which the times of a transcript may miss a pause."""


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


@functools.cache
def code() -> tuple[str, ...]:
    """Digests of what decides how a recording becomes clips: results of other code are not taken for its own."""
    return tuple(files.digest(Path(module.__file__ or "")) for module in (segment, measure, bandwidth, loudness, sys.modules[__name__]))


def divide(transcript: Transcript | None, units: list[Unit], regions: list[Region], master: Audio, lengths: Lengths) -> list[Piece]:
    """Where to cut. A transcript's author divided the text, and timed it worse than Whisper does."""
    length = len(master.samples)
    if transcript is not None and transcript.text:
        cuts = segment.whole(units, regions, length)
    else:
        cuts = segment.align(units, regions, length, UTTERANCE_TOLERANCE if transcript else transcribe.WORD_TOLERANCE)
    return segment.divide(cuts, units, master, lengths, segment.utterance_bonus if transcript else segment.sentence_bonus)


def write(out: Path, source: Source, pieces: list[Piece], regions: list[Region], master: Audio, language: str | None) -> list[Clip]:
    """Measure all, and write what has a text, with one gain for the recording. `language` None: what Whisper heard."""
    noise = measure.noise_power(master.samples, regions)
    of_all = {"bandwidth_hz": float(bandwidth.bandwidth(master.samples, MASTER_RATE))}
    gain = loudness.gain(master, regions)
    clips = []
    for piece in pieces:
        clip = Clip(
            id=identity(source, piece),
            audio=path_of(source, piece) if piece.text else None,
            start=piece.start,
            stop=piece.stop,
            text=piece.text,
            language=language or _language(piece),
            quality=measure.measure(master.samples, piece, regions, noise).model_copy(update=of_all),
            gain_db=round(20 * math.log10(gain), 2),
        )
        if clip.audio:
            louder = Audio(master.samples[piece.start : piece.stop] * np.float32(gain), MASTER_RATE)
            files.write_bytes(out / clip.audio, flac(faded(louder)))
        clips.append(clip)
    return clips


def identity(source: Source, piece: Piece) -> str:
    """The same sound at the same place has the same name, whatever its text and its verdict."""
    return f"{source.digest[:12]}_{to_rate(piece.start, MASTER_RATE, 1000):08d}_{to_rate(piece.stop, MASTER_RATE, 1000):08d}"


def path_of(source: Source, piece: Piece) -> str:
    """Where a clip lies in the data set."""
    return f"clips/{source.digest[:2]}/{identity(source, piece)}.flac"


def are_there(out: Path) -> Callable[[list[Clip]], bool]:
    """A test whether all clips of a stored result are still on the disk."""
    return lambda clips: all((out / clip.audio).is_file() for clip in clips if clip.audio)


def _language(piece: Piece) -> str:
    """What Whisper heard most of."""
    heard = Counter(unit.heard.language for unit in piece.units if unit.heard)
    return max(sorted(heard), key=heard.__getitem__) if heard else AUTO
