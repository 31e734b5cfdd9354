"""The rules that a clip must pass. Nothing is deleted: a clip that fails is reported with every rule it failed.

A rule is a number and the interval that it must lie in, so that a report can show what other limits would keep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from data_prep.segment import Lengths

CHARACTERS_PER_SECOND = {"chinese": (1.5, 12.0), "japanese": (2.0, 20.0), "korean": (1.5, 15.0)}
"""Of speech. A syllable is one character there, and two to three elsewhere."""
CHARACTERS_PER_SECOND_ELSEWHERE = (4.0, 30.0)
PACE_DEVIATIONS = 4.0
"""Median absolute deviations that a clip may be away from the median pace of its speaker."""
PACE_CLIPS = 8
"""With fewer clips of a speaker nothing is known of their usual pace."""
PACE_SPREAD = 0.3
"""Part of the median that is always allowed: an even reader's deviations are tiny, and a name spelt out is no mistake."""


VOICE_CLIPS = 8
"""With fewer clips of a speaker nothing is known of how much their voice varies."""
VOICE_FENCE = 2.0
"""Interquartile ranges above the upper quartile. For a bell curve that is 3.4 standard deviations. Quartiles hold where the median and
its deviations fail: a speaker with 60 % of the clips from one room and 40 % from another is still one speaker. Measured on 120 clips of
one voice, by four encoders with random weights: 1 to 3 % are beyond it, and 4 to 12 % beyond the median and four deviations, as
distances have a long tail."""
VOICE_SPREAD = 1.5
"""Times the median that is always allowed: an even voice's distances hardly differ."""
ROUNDING = 1e-5
"""Distances below it are none: cosines have six decimals."""


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
    longest_pause: float | None = None
    """Seconds between two stretches of speech inside the clip."""
    loudness_lufs: float | None = None
    """Integrated, ITU-R BS.1770."""
    bandwidth_hz: float | None = None
    """Where the recording's spectrum ends."""
    pitch_hz: float | None = None
    """Median of the voiced frames."""
    speaker_cos: float | None = None
    """Cosine between the clip's voice and its speaker's, by the encoder that was asked for."""
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None
    text_complete: bool | None = None
    language_prob: float | None = None
    """Of the clip's language, by Whisper."""
    repeated_share: float | None = None
    """Part of the words that only repeat those before them."""
    outside_speech_share: float | None = None
    """Part of the words whose middle Whisper places where the detector hears no speech."""
    asr_error: str | None = None
    """Why there is no text, where Whisper failed."""


@dataclass(frozen=True)
class Candidate:
    """What a rule may look at."""

    seconds: float
    text: str
    language: str
    quality: Quality
    lengths: Lengths
    pace_range: tuple[float, float] | None = None
    """Characters per second that are usual for the speaker (`pace_ranges`); None: those that are possible in the language."""
    voice_limit: float | None = None
    """How far a clip of the speaker may be from the speaker's voice (`voice_limits`); None: nobody knows."""


@dataclass(frozen=True)
class Rule:
    """A clip is rejected for `reason` if its value is known and outside `least` … `most`, in `unit`s; `says` is for people."""

    reason: str
    says: str
    unit: str
    value: Callable[[Candidate], float | None]
    """None: unknown, or the rule does not apply."""
    least: float = -inf
    most: float = inf

    def fails(self, candidate: Candidate) -> bool:
        value = self.value(candidate)
        return value is not None and not self.least <= value <= self.most


class Measured(NamedTuple):
    """A clip before it is held against the others of its speaker."""

    speaker: str
    seconds: float
    text: str
    language: str
    quality: Quality


def candidates(clips: Sequence[Measured], lengths: Lengths) -> list[Candidate]:
    """All clips as the rules see them, in their order: what is usual for a speaker is seen from all of them."""
    paces = pace_ranges((clip.speaker, clip.language, clip.quality.chars_per_second) for clip in clips if clip.text)
    limits = voice_limits((clip.speaker, clip.quality.speaker_cos) for clip in clips)
    return [
        Candidate(seconds, text, language, quality, lengths, paces.get((speaker, language)), limits.get(speaker))
        for speaker, seconds, text, language, quality in clips
    ]


def failures(candidate: Candidate, rules: Iterable[Rule]) -> list[str]:
    """The reasons of all rules that fail."""
    return [rule.reason for rule in rules if rule.fails(candidate)]


def pace_ranges(paces: Iterable[tuple[str, str, float]]) -> dict[tuple[str, str], tuple[float, float]]:
    """(speaker, language) → usual characters per second, from (speaker, language, characters per second) of all clips with a text.

    Median ± 4 median absolute deviations, inside of what is possible in the language.
    """
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for speaker, language, pace in paces:
        groups[speaker, language].append(pace)
    return {key: _usual(group, _possible_pace(key[1])) for key, group in groups.items()}


def _usual(paces: Sequence[float], possible: tuple[float, float]) -> tuple[float, float]:
    median = float(np.median(paces))
    spread = max(PACE_DEVIATIONS * float(np.median(np.abs(np.asarray(paces) - median))), PACE_SPREAD * median)
    if len(paces) < PACE_CLIPS or not possible[0] <= median <= possible[1]:
        return possible
    return max(possible[0], round(median - spread, 2)), min(possible[1], round(median + spread, 2))


def voice_limits(cosines: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    """Speaker → the largest distance (1 − cosine) that still is their voice, from (speaker, `speaker_cos`) of all clips.

    There is no number for all encoders: of some, clips of one person have a cosine of 0.2, of others two people have 0.97. So a clip is
    held against the others of its speaker; where these lie far from each other, more is allowed.
    """
    groups: dict[str, list[float]] = defaultdict(list)
    for speaker, cosine in cosines:
        if cosine is not None:
            groups[speaker].append(1 - cosine)
    return {speaker: _voice_limit(distances) for speaker, distances in groups.items() if len(distances) >= VOICE_CLIPS}


def _voice_limit(distances: Sequence[float]) -> float:
    lower, median, upper = np.quantile(distances, [0.25, 0.5, 0.75])
    return float(max(upper + VOICE_FENCE * (upper - lower), VOICE_SPREAD * median, ROUNDING))


def _possible_pace(language: str) -> tuple[float, float]:
    return CHARACTERS_PER_SECOND.get(language, CHARACTERS_PER_SECOND_ELSEWHERE)


def _pace(clip: Candidate, limit: int) -> float | None:
    """Relative to the lower (0) or upper (1) end of what is usual."""
    usual = clip.pace_range or _possible_pace(clip.language)
    return clip.quality.chars_per_second / usual[limit] if clip.text else None


def _doubt(clip: Candidate) -> float | None:
    """Whisper is often wrong about silence where it is sure of its words, so only unsure words count."""
    quality = clip.quality
    return quality.no_speech_prob if quality.avg_logprob is not None and quality.avg_logprob < -0.5 else None


def _strangeness(clip: Candidate) -> float | None:
    cosine = clip.quality.speaker_cos
    return None if cosine is None or clip.voice_limit is None else (1 - cosine) / clip.voice_limit


def _edge(clip: Candidate) -> float:
    """The louder edge, less what the noise of the room explains: 6 dB above its floor is silence there."""
    snr = clip.quality.snr_db
    return max(clip.quality.edge_energy_db) - max(0.0, 31.0 - snr if snr is not None else 0.0)


def _finished(clip: Candidate) -> float | None:
    return None if clip.quality.text_complete is None else float(clip.quality.text_complete)


TRAINABLE = (
    Rule("no_text", "speech without a text", "characters", lambda clip: len(clip.text), least=1),
    Rule("too_short", "shorter than --shortest", "s above it", lambda clip: clip.seconds - clip.lengths.shortest, least=0),
    Rule(
        "too_long", "longer than --longest, and no pause to cut in", "s above it", lambda clip: clip.seconds - clip.lengths.longest, most=0
    ),
)
"""What a clip needs to be trained on at all."""

HEARING = (
    Rule("asr_error", "Whisper failed on a part of it", "failures", lambda clip: float(clip.quality.asr_error is not None), most=0),
    Rule("unsure_text", "Whisper is unsure of the words", "mean log-probability", lambda clip: clip.quality.avg_logprob, least=-1.0),
    Rule("unfinished_text", "Whisper ran into its token limit", "1: ended by itself", _finished, least=1),
    Rule("repeated_text", "the text compresses too well", "times", lambda clip: clip.quality.compression_ratio, most=2.4),
    Rule("looping_text", "words repeat those before them", "of the words", lambda clip: clip.quality.repeated_share, most=0.3),
    Rule("maybe_no_speech", "Whisper doubts that there is speech", "probability", _doubt, most=0.6),
    Rule("words_outside_speech", "words where nobody speaks", "of the words", lambda clip: clip.quality.outside_speech_share, most=0.1),
    Rule("unsure_language", "perhaps another language", "probability", lambda clip: clip.quality.language_prob, least=0.8),
)
"""Signs of a text that nobody said."""

SOUND = (
    Rule("too_slow", "fewer characters a second than usual", "of the lower limit", lambda clip: _pace(clip, 0), least=1.0),
    Rule("too_fast", "more characters a second than usual", "of the upper limit", lambda clip: _pace(clip, 1), most=1.0),
    Rule("mostly_silence", "the detector hears little speech", "of the clip", lambda clip: clip.quality.speech_share, least=0.5),
    Rule("long_pause", "a long pause inside", "s", lambda clip: clip.quality.longest_pause, most=1.5),
    Rule("clipped", "samples at full scale", "of the samples", lambda clip: clip.quality.clipped_share, most=0.001),
    Rule("noisy", "speech too little above the noise", "dB", lambda clip: clip.quality.snr_db, least=15.0),
    Rule("cut_in_sound", "loud at its first or last 30 ms", "dB of its speech", _edge, most=-25.0),
    Rule("other_speaker", "does not sound like the speaker's other clips", "of the distance allowed", _strangeness, most=1.0),
)

DEFAULT = (*TRAINABLE, *HEARING, *SOUND)
CLEAN_LIMITS = {"unsure_text": -0.7, "noisy": 20.0}
NARROW = Rule("narrow_band", "the spectrum ends too low", "Hz", lambda clip: clip.quality.bandwidth_hz, least=7000.0)

PRESETS: dict[str, tuple[Rule, ...]] = {
    "clean": (*(replace(rule, least=CLEAN_LIMITS.get(rule.reason, rule.least)) for rule in DEFAULT), NARROW),
    "default": DEFAULT,
    "keep-all": TRAINABLE,
}
"""What `--preset` chooses from."""


def presets(least_sure: float | None = None) -> dict[str, tuple[Rule, ...]]:
    """Those rules for texts of a Whisper that invents some with a mean log-probability of up to `least_sure`."""
    if least_sure is None:
        return PRESETS
    return {name: tuple(_surer(rule, least_sure) for rule in rules) for name, rules in PRESETS.items()}


def _surer(rule: Rule, least: float) -> Rule:
    return replace(rule, least=max(rule.least, least)) if rule.reason == "unsure_text" else rule
