"""What a clip measures, and the rules that it must pass. Nothing is deleted: a clip that fails is reported with every rule it failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict

from data_prep.audio import MASTER_RATE, Samples
from data_prep.segment import Lengths, Piece
from data_prep.vad import Region

FRAME = MASTER_RATE // 100
EDGE = MASTER_RATE * 30 // 1000
QUIETEST_DB = -100.0
FULL_SCALE = 0.999
CHARACTERS_PER_SECOND = {"chinese": (1.5, 12.0), "japanese": (2.0, 20.0), "korean": (1.5, 15.0)}
"""Of speech. A syllable is one character there, and two to three elsewhere."""
CHARACTERS_PER_SECOND_ELSEWHERE = (4.0, 30.0)


class Quality(BaseModel):
    """Measures of one clip. dB are relative to the power of its speech, dBFS to full scale. Absent: unknown."""

    model_config = ConfigDict(frozen=True, extra="allow")

    chars_per_second: float
    """Characters of the text per second of speech."""
    speech_share: float
    """Part of the clip in which the detector hears speech."""
    peak_dbfs: float
    clipped_share: float
    """Part of the samples at full scale."""
    snr_db: float | None = None
    """Speech against the median of the recording outside of speech."""
    edge_energy_db: tuple[float, float]
    """First and last 30 ms: shows that the cut is in silence."""
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None
    text_complete: bool | None = None


def noise_power(samples: Samples, regions: list[Region]) -> float | None:
    """Median power of the 10 ms frames of a recording that lie outside of speech; None if there are none."""
    count = len(samples) // FRAME
    power = np.square(samples[: count * FRAME].reshape(count, FRAME)).mean(axis=1)
    outside = np.ones(count, bool)
    for region in regions:
        outside[region.start // FRAME : -(-region.stop // FRAME)] = False
    return float(np.median(power[outside])) if outside.any() else None


def measure(samples: Samples, piece: Piece, regions: list[Region], noise: float | None) -> Quality:
    """`samples`: the master of the whole recording; `regions`: its speech."""
    clip = samples[piece.start : piece.stop].astype(np.float64)
    speech = _speech(samples, piece, regions)
    power = float(np.square(speech).mean()) if len(speech) else 0.0
    heard = [unit.heard for unit in piece.units if unit.heard]
    return Quality(
        chars_per_second=round(len(piece.text) / max(len(speech) / MASTER_RATE, 0.01), 2),
        speech_share=round(len(speech) / max(len(clip), 1), 3),
        peak_dbfs=_decibel(float(np.abs(clip).max(initial=0.0)) ** 2, 1.0),
        clipped_share=round(float((np.abs(clip) >= FULL_SCALE).mean()) if len(clip) else 0.0, 6),
        snr_db=None if noise is None else min(_decibel(power, noise), -QUIETEST_DB),
        edge_energy_db=(_decibel(_power(clip[:EDGE]), power), _decibel(_power(clip[-EDGE:]), power)),
        avg_logprob=min((one.avg_logprob for one in heard), default=None),
        compression_ratio=max((one.compression_ratio for one in heard), default=None),
        no_speech_prob=max((one.no_speech_prob for one in heard), default=None),
        text_complete=all(one.complete for one in heard) if heard else None,
    )


@dataclass(frozen=True)
class Rule:
    """A clip is rejected for `reason` when it `fails`; `says` is for people."""

    reason: str
    says: str
    fails: Callable[[Candidate], bool]


@dataclass(frozen=True)
class Candidate:
    """What a rule may look at."""

    seconds: float
    text: str
    language: str
    quality: Quality
    lengths: Lengths


RULES: tuple[Rule, ...] = (
    Rule("no_text", "speech without a text", lambda clip: not clip.text),
    Rule("too_short", "shorter than --shortest", lambda clip: clip.seconds < clip.lengths.shortest),
    Rule("too_long", "longer than --longest, and no pause to cut in", lambda clip: clip.seconds > clip.lengths.longest),
    Rule("too_slow", "fewer characters a second than anyone reads", lambda clip: clip.quality.chars_per_second < _pace(clip)[0]),
    Rule("too_fast", "more characters a second than anyone reads", lambda clip: clip.quality.chars_per_second > _pace(clip)[1]),
    Rule("unsure_text", "Whisper's mean log-probability is at most -1.0", lambda clip: _known(clip.quality.avg_logprob, 0.0) <= -1.0),
    Rule("unfinished_text", "Whisper ran into its token limit", lambda clip: clip.quality.text_complete is False),
    Rule("repeated_text", "the text compresses more than 2.4 times", lambda clip: _known(clip.quality.compression_ratio, 0.0) > 2.4),
    Rule("maybe_no_speech", "Whisper doubts that there is speech", lambda clip: _doubtful(clip.quality)),
    Rule("clipped", "0.1 % of the samples or more at full scale", lambda clip: clip.quality.clipped_share >= 0.001),
    Rule("noisy", "speech less than 15 dB above the noise", lambda clip: _known(clip.quality.snr_db, 100.0) < 15.0),
    Rule("cut_in_sound", "loud at its first or last 30 ms", lambda clip: max(clip.quality.edge_energy_db) > _edge_limit(clip.quality)),
)


def failures(candidate: Candidate) -> list[str]:
    """The reasons of all rules that fail. What has no text is not judged by its text."""
    reasons = [rule.reason for rule in RULES if rule.fails(candidate)]
    return reasons if candidate.text else [reason for reason in reasons if reason != "too_slow"]


def _pace(clip: Candidate) -> tuple[float, float]:
    return CHARACTERS_PER_SECOND.get(clip.language, CHARACTERS_PER_SECOND_ELSEWHERE)


def _doubtful(quality: Quality) -> bool:
    return _known(quality.no_speech_prob, 0.0) > 0.6 and _known(quality.avg_logprob, 0.0) < -0.5


def _edge_limit(quality: Quality) -> float:
    """-25 dB, or what the noise of the room allows: 6 dB above its floor."""
    return max(-25.0, 6.0 - _known(quality.snr_db, 100.0))


def _known(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _speech(samples: Samples, piece: Piece, regions: list[Region]) -> Samples:
    inside = [samples[max(region.start, piece.start) : min(region.stop, piece.stop)] for region in regions]
    return np.concatenate(inside) if inside else samples[:0]


def _power(samples: np.ndarray) -> float:
    return float(np.square(samples).mean()) if len(samples) else 0.0


def _decibel(power: float, reference: float) -> float:
    if power <= 0.0 or reference <= 0.0:
        return QUIETEST_DB if power <= 0.0 else -QUIETEST_DB
    return round(max(10.0 * float(np.log10(power / reference)), QUIETEST_DB), 1)
