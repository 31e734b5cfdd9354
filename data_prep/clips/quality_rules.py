"""Quality rules for clips: limits on transcription confidence, speaking rate, signal-to-noise ratio, pauses, speaker similarity and more.

A rule compares one measure with an interval, so the report can show what other limits would keep. A clip that fails is reported with every
rule it fails; nothing is deleted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np

from overtone.data_prep.clips.speaking_rate import find_plausible_rates
from overtone.data_prep.manifest import Quality
from overtone.data_prep.segmentation.clip_segmentation import LEAST_SPEECH_SHARE, LONG_PAUSE_SECONDS, Lengths

PACE_DEVIATIONS = 4.0
"""Allowed distance from the median speaking rate of the speaker, in median absolute deviations."""
PACE_CLIPS = 8
"""Minimum number of clips to estimate a speaker's usual speaking rate."""
PACE_SPREAD = 0.3
"""Share of the median that is always allowed: an even reader's deviations are tiny, and a name spelt out is not an error."""


MOST_OVERLAP = 0.07
"""Share of the loud frames in which two voices may speak at once. Of 212 clean prompts of the two people that the network was fitted on,
but not on these prompts, none has more than 0.04; with a limit of 0.05, a fifth of the clips in the band of a telephone were lost.
`workshop/benchmarks/overlapped_speech.py` reports on other voices."""
VOICE_CLIPS = 8
"""Minimum number of clips to estimate how much a speaker's voice varies."""
VOICE_FENCE = 2.0
"""Limit on the speaker distance: interquartile ranges above the upper quartile (3.4 standard deviations of a normal distribution).
Quartiles are robust where median and deviations fail: a speaker with 60 % of the clips from one room and 40 % from another is still one
speaker. Measured on 120 clips of one voice, with four encoders with random weights: 1 to 3 % exceed it, while 4 to 12 % exceed the median
plus four deviations, because distances have a long tail."""
VOICE_SPREAD = 1.5
"""Multiple of the median that is always allowed: the distances of an even voice hardly differ."""
ROUNDING = 1e-5
"""Smaller distances count as zero: cosines are stored with six decimals."""
QUIET_DB, RAISE_PER_DB, INAUDIBLE_DB = -28.0, 0.1, -35.0
"""Level of the quietest moments from which a background counts as quiet, what each dB below adds to its rating, and the level below which
there is none. Some voices are rated low without any background, and whispers very low; the pauses between the words do not depend on the
voice."""


@dataclass(frozen=True)
class Candidate:
    """A clip as the rules see it."""

    seconds: float
    text: str
    language: str
    quality: Quality
    lengths: Lengths
    pace_range: tuple[float, float] | None = None
    """Usual characters per second of the speaker (`compute_pace_ranges`); None: the plausible range of the language."""
    voice_limit: float | None = None
    """Maximum speaker distance (`compute_voice_limits`); None: unknown."""


@dataclass(frozen=True)
class Rule:
    """Rejects a clip with `reason` if its value is known and outside `least` … `most` (in `unit`); `description` is for display."""

    reason: str
    description: str
    unit: str
    value: Callable[[Candidate], float | None]
    """The measure; None: unknown, or the rule does not apply."""
    least: float = -inf
    most: float = inf

    def fails(self, candidate: Candidate) -> bool:
        value = self.value(candidate)
        return value is not None and not self.least <= value <= self.most


class RuleInput(NamedTuple):
    """A clip before it is compared with the other clips of its speaker."""

    speaker: str
    seconds: float
    text: str
    language: str
    quality: Quality


def build_candidates(clips: Sequence[RuleInput], lengths: Lengths) -> list[Candidate]:
    """Return the clips as the rules see them, in the same order; speaking rate and voice limits come from all clips of a speaker."""
    paces = compute_pace_ranges((clip.speaker, clip.language, clip.quality.chars_per_second) for clip in clips if clip.text)
    limits = compute_voice_limits((clip.speaker, clip.quality.speaker_cos) for clip in clips)
    return [
        Candidate(
            seconds=seconds,
            text=text,
            language=language,
            quality=quality,
            lengths=lengths,
            pace_range=paces.get((speaker, language)),
            voice_limit=limits.get(speaker),
        )
        for speaker, seconds, text, language, quality in clips
    ]


def find_failures(candidate: Candidate, rules: Iterable[Rule]) -> list[str]:
    """Return the reasons of all rules that the clip fails."""
    return [rule.reason for rule in rules if rule.fails(candidate)]


def compute_pace_ranges(paces: Iterable[tuple[str, str, float]]) -> dict[tuple[str, str], tuple[float, float]]:
    """Return (speaker, language) → usual characters per second, from (speaker, language, characters per second) of all clips with a text.

    Median ± 4 median absolute deviations, clipped to the plausible range of the language.
    """
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for speaker, language, pace in paces:
        groups[speaker, language].append(pace)
    return {key: _compute_pace_range(group, find_plausible_rates(key[1])) for key, group in groups.items()}


def _compute_pace_range(paces: Sequence[float], possible: tuple[float, float]) -> tuple[float, float]:
    median = float(np.median(paces))
    spread = max(PACE_DEVIATIONS * float(np.median(np.abs(np.asarray(paces) - median))), PACE_SPREAD * median)
    if len(paces) < PACE_CLIPS or not possible[0] <= median <= possible[1]:
        return possible
    return max(possible[0], round(median - spread, 2)), min(possible[1], round(median + spread, 2))


def compute_voice_limits(cosines: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    """Return speaker → maximum speaker distance (1 − cosine), from (speaker, `speaker_cos`) of all clips.

    No threshold fits all encoders: with some, clips of one person have a cosine of 0.2; with others, two people have 0.97. So the limit is
    relative to the spread of the distances of the speaker's own clips.
    """
    groups: dict[str, list[float]] = defaultdict(list)
    for speaker, cosine in cosines:
        if cosine is not None:
            groups[speaker].append(1 - cosine)
    return {speaker: _compute_voice_limit(distances) for speaker, distances in groups.items() if len(distances) >= VOICE_CLIPS}


def _compute_voice_limit(distances: Sequence[float]) -> float:
    lower, median, upper = np.quantile(distances, [0.25, 0.5, 0.75])
    return float(max(upper + VOICE_FENCE * (upper - lower), VOICE_SPREAD * median, ROUNDING))


def _compute_relative_pace(clip: Candidate, limit: int) -> float | None:
    """Return the speaking rate relative to the lower (`limit` 0) or upper (1) end of the usual range."""
    usual = clip.pace_range or find_plausible_rates(clip.language)
    return clip.quality.chars_per_second / usual[limit] if clip.text else None


def _read_no_speech_prob(clip: Candidate) -> float | None:
    """Return the no-speech probability where Whisper is unsure of the words; where it is confident, that probability is often wrong."""
    quality = clip.quality
    return quality.no_speech_prob if quality.avg_logprob is not None and quality.avg_logprob < -0.5 else None


def _compute_speaker_distance(clip: Candidate) -> float | None:
    cosine = clip.quality.speaker_cos
    return None if cosine is None or clip.voice_limit is None else (1 - cosine) / clip.voice_limit


def _compute_edge_level(clip: Candidate) -> float:
    """Return the level of the louder edge, minus what room noise explains: up to 6 dB above the noise floor counts as silence."""
    snr = clip.quality.snr_db
    return max(clip.quality.edge_energy_db) - max(0.0, 31.0 - snr if snr is not None else 0.0)


def _rate_background(clip: Candidate) -> float | None:
    """Return the rating of the background, raised if the quiet moments are quiet; None if they are inaudible."""
    rating, level = clip.quality.mos_background, clip.quality.background_db
    if rating is None or level is None:
        return rating
    return None if level < INAUDIBLE_DB else rating + max(QUIET_DB - level, 0.0) * RAISE_PER_DB


def _read_guest(clip: Candidate) -> float | None:
    return None if clip.quality.is_speaker is None else float(not clip.quality.is_speaker)


def _read_text_complete(clip: Candidate) -> float | None:
    return None if clip.quality.text_complete is None else float(clip.quality.text_complete)


TRAINABLE = (
    Rule("no_text", "speech without text", "characters", lambda clip: len(clip.text), least=1),
    Rule("too_short", "shorter than --shortest", "s above --shortest", lambda clip: clip.seconds - clip.lengths.shortest, least=0),
    Rule(
        "too_long",
        "longer than --longest, without a pause to cut at",
        "s above it",
        lambda clip: clip.seconds - clip.lengths.longest,
        most=0,
    ),
)
"""Rules that every clip must pass to be usable for training at all."""

TEXT_RULES = (
    Rule("asr_error", "Whisper failed on part of the clip", "failures", lambda clip: float(clip.quality.asr_error is not None), most=0),
    Rule("unsure_text", "low transcription confidence", "mean log-probability", lambda clip: clip.quality.avg_logprob, least=-1.0),
    Rule("unfinished_text", "Whisper reached its token limit", "1: complete", _read_text_complete, least=1),
    Rule("repeated_text", "repetitive text", "compression ratio", lambda clip: clip.quality.compression_ratio, most=2.4),
    Rule("looping_text", "words repeat the preceding words", "of the words", lambda clip: clip.quality.repeated_share, most=0.3),
    Rule("maybe_no_speech", "high no-speech probability", "probability", _read_no_speech_prob, most=0.6),
    Rule("words_outside_speech", "words outside detected speech", "of the words", lambda clip: clip.quality.outside_speech_share, most=0.1),
    Rule("text_not_spoken", "the text does not align with the sound", "nats", lambda clip: clip.quality.alignment_score, least=0),
    Rule("text_contradicted", "Whisper transcribes other words", "word error rate", lambda clip: clip.quality.check_wer, most=0.5),
    Rule("unsure_language", "language detected with low probability", "probability", lambda clip: clip.quality.language_prob, least=0.8),
)
"""Rules on the transcript: signs of hallucinated or misplaced text. The limit of `text_not_spoken` is that of the aligner: its score is
relative to it; that of `text_contradicted` leaves room for a small Whisper: a wrong text has a word error rate near 1."""

AUDIO_RULES = (
    Rule(
        "too_slow", "fewer characters per second than usual", "of the lower limit", lambda clip: _compute_relative_pace(clip, 0), least=1.0
    ),
    Rule("too_fast", "more characters per second than usual", "of the upper limit", lambda clip: _compute_relative_pace(clip, 1), most=1.0),
    Rule("mostly_silence", "little speech detected", "of the clip", lambda clip: clip.quality.speech_share, least=LEAST_SPEECH_SHARE),
    Rule("long_pause", "long pause inside the clip", "s", lambda clip: clip.quality.longest_pause, most=LONG_PAUSE_SECONDS),
    Rule("clipped", "samples at full scale", "of the samples", lambda clip: clip.quality.clipped_share, most=0.001),
    Rule("noisy", "low signal-to-noise ratio", "dB", lambda clip: clip.quality.snr_db, least=15.0),
    Rule("cut_in_sound", "loud in its first or last 30 ms", "dB of its speech", _compute_edge_level, most=-25.0),
    Rule("flattened", "peaks cut off below full scale", "99.9th over 99th percentile", lambda clip: clip.quality.peak_spread, least=1.08),
    Rule("too_quiet", "recorded at a very low level", "LUFS", lambda clip: clip.quality.loudness_lufs, least=-55.0),
    Rule("background_sound", "music, noise or hum behind the speech", "of 5", _rate_background, least=3.65),
    Rule("poor_sound", "reverberant, distorted or muffled", "of 5", lambda clip: clip.quality.mos_overall, least=2.5),
    Rule("overlapped_speech", "two people speak at once", "of the speech", lambda clip: clip.quality.overlap_share, most=MOST_OVERLAP),
    Rule("two_voices", "two voices in one clip", "of the clip", lambda clip: clip.quality.other_voice_share, most=0.05),
    Rule("guest_speaker", "another person, in a recording that holds the speaker too", "1: a guest", _read_guest, most=0),
    Rule("other_speaker", "unlike the speaker's other clips", "of the allowed distance", _compute_speaker_distance, most=1.0),
)

"""Rules on the sound.

The limits of `flattened`, `too_quiet`, `background_sound` and `poor_sound` are measured on the English and French telephone prompts of two
speakers; `tests/data_prep/test_voices_and_sound.py` and `workshop/benchmarks/background_sound.py` report on other prompts and on three
other voices. Of the clean clips, 1 % have a peak spread below 1.16, 5 % a rating below 3.7 of the background and below 2.8 overall. With
peaks cut to a half, 99 % have a spread below 1.07. Music 20 dB below the speech rates 1.9 to 3.5 for the background, and the moments
between its beats are 18 to 28 dB below the speech; those of clean clips are 31 to 52 dB below. Reverberation of 0.6 s rates 1.4 to 2.2
overall. Speech at -68 dBFS in 16 bits is rated only 0.3 lower, so its level is limited instead. The limits are between the clean and the
faulty clips."""

DEFAULT = (*TRAINABLE, *TEXT_RULES, *AUDIO_RULES)
CLEAN_LIMITS = {"unsure_text": -0.7, "noisy": 20.0, "background_sound": 3.8, "poor_sound": 2.65}
NARROW = Rule("narrow_band", "low bandwidth", "Hz", lambda clip: clip.quality.bandwidth_hz, least=7000.0)

KEEP_ALL = "keep-all"
PRESETS: dict[str, tuple[Rule, ...]] = {
    "clean": (*(replace(rule, least=CLEAN_LIMITS.get(rule.reason, rule.least)) for rule in DEFAULT), NARROW),
    "default": DEFAULT,
    KEEP_ALL: TRAINABLE,
}
"""Rules by name of `--preset`."""


def make_presets(least_sure: float | None = None) -> dict[str, tuple[Rule, ...]]:
    """Return the presets; `least_sure` raises the limit on the mean log-probability, for a Whisper that hallucinates at higher
    confidence."""
    if least_sure is None:
        return PRESETS
    return {
        name: tuple(replace(rule, least=max(rule.least, least_sure)) if rule.reason == "unsure_text" else rule for rule in rules)
        for name, rules in PRESETS.items()
    }
