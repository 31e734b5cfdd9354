"""Measures of a clip: level, clipping, SNR, pitch, overlapped speech, pauses, speaking rate, transcription confidence.

`data_prep/clips/quality_rules.py` has the rules.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right

import numpy as np

from overtone.data_prep.audio.librosa_import import import_librosa
from overtone.data_prep.audio.waveform import MASTER_RATE, Audio, Samples
from overtone.data_prep.clips import loudness
from overtone.data_prep.clips.overlapped_speech import measure_overlap
from overtone.data_prep.clips.speaking_rate import measure_speaking_rate
from overtone.data_prep.manifest import Quality
from overtone.data_prep.segmentation.clip_segmentation import Piece, TextUnit
from overtone.data_prep.segmentation.vad import Region

FRAME = MASTER_RATE // 100
EDGE = MASTER_RATE * 30 // 1000
QUIETEST_DB = -100.0
FULL_SCALE = 0.999
LOUD = 1e-3
"""Power of a loud frame relative to the loudest one."""
PITCH_HZ = (65.0, 600.0)
PITCH_FRAME, PITCH_HOP = 1024, 960
"""Samples. Frames every 40 ms are enough for a median and take 0.5 ms per second of speech."""
BACKGROUND_FRAME = MASTER_RATE // 50
BACKGROUND_SHARE = 0.05
"""Share of the frames that are the quietest moments of a clip: pauses, and the closures of stops."""
BACKGROUND_REACH = MASTER_RATE // 2
"""Samples before and after a clip whose pauses count: a clip that was cut closely has none."""
STEADY = 1e-2
"""Power of a frame of speech relative to the loudest one."""
PHRASE_WORDS = 8
"""Longest phrase checked for repetition; Whisper loops on shorter ones."""
WORD_TIME_ERROR = MASTER_RATE // 5
"""Error of Whisper's word times in samples: a word this near to speech counts as speech."""
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
"""One Chinese or Japanese character, or a run of letters and digits in other scripts."""


def measure_noise_power(samples: Samples, regions: list[Region]) -> float | None:
    """Return the median power of the 10 ms frames outside speech; None if there are none. `samples`: [n], the whole recording."""
    count = len(samples) // FRAME
    frames = samples[: count * FRAME].reshape(count, FRAME)
    power = np.einsum("ij,ij->i", frames, frames) / FRAME  # without a copy: hours of samples are memory-mapped
    outside = np.ones(count, bool)
    for region in regions:
        outside[region.start // FRAME : -(-region.stop // FRAME)] = False
    return float(np.median(power[outside])) if outside.any() else None


def measure_clip(samples: Samples, piece: Piece, regions: list[Region], noise: float | None, language: str) -> Quality:
    """Return the measures of one piece in `language`. `samples`: [n], master of the whole recording; `regions`: its speech."""
    clip = samples[piece.start : piece.stop].astype(np.float64)
    inside = _cut_regions(piece.start, piece.stop, regions)
    speech = np.concatenate([samples[part.start : part.stop] for part in inside]) if inside else samples[:0]
    power = _compute_power(speech.astype(np.float64))
    scores = [unit.heard for unit in piece.units if unit.heard]
    lufs = loudness.measure_loudness(Audio(samples[piece.start : piece.stop], MASTER_RATE))
    return Quality(
        chars_per_second=measure_speaking_rate(piece.text, len(speech) / MASTER_RATE, language),
        speech_share=round(len(speech) / max(len(clip), 1), 3),
        peak_dbfs=_compute_decibel(float(np.abs(clip).max(initial=0.0)) ** 2, 1.0),
        clipped_share=round(float((np.abs(clip) >= FULL_SCALE).mean()) if len(clip) else 0.0, 6),
        peak_spread=measure_peak_spread(speech),
        snr_db=None if noise is None else min(_compute_decibel(power, noise), -QUIETEST_DB),
        background_db=measure_background(samples, piece.start, piece.stop),
        edge_energy_db=(_compute_decibel(_compute_power(clip[:EDGE]), power), _compute_decibel(_compute_power(clip[-EDGE:]), power)),
        longest_pause=find_longest_pause(inside),
        loudness_lufs=None if lufs is None else round(lufs, 1),
        pitch_hz=measure_pitch(speech),
        overlap_share=measure_overlap(samples[piece.start : piece.stop]) if piece.text else None,
        avg_logprob=min((one.avg_logprob for one in scores), default=None),
        compression_ratio=max((one.compression_ratio for one in scores), default=None),
        no_speech_prob=max((one.no_speech_prob for one in scores), default=None),
        text_complete=all(one.complete for one in scores) if scores else None,
        language_prob=min((one.language_prob for one in scores if one.language_prob is not None), default=None),
        repeated_share=measure_repeated_share(piece.text) if scores else None,
        outside_speech_share=measure_outside_speech_share([unit for unit in piece.units if unit.heard], regions),
        asr_error=next((unit.error for unit in piece.units if unit.error), None),
    )


def measure_peak_spread(speech: Samples) -> float | None:
    """Return the 99.9th percentile divided by the 99th of the magnitude of the frames within 30 dB of the loudest one; None for silence.
    `speech`: [n]."""
    count = len(speech) // FRAME
    frames = np.abs(speech[: count * FRAME].astype(np.float64).reshape(count, FRAME))
    power = np.square(frames).mean(axis=1)
    if not power.any():
        return None
    common, rare = np.quantile(frames[power > LOUD * power.max()], [0.99, 0.999])
    return round(float(rare / common), 3)


def measure_background(samples: Samples, start: int, stop: int) -> float | None:
    """Return the level of the quietest 20 ms (5 % of them) in and around a clip, in dB relative to its speech; None for silence. `samples`:
    [n]."""
    power = _compute_frame_powers(samples[start:stop])
    if not power.any():
        return None
    speech = power[power >= STEADY * power.max()].mean()
    around = _compute_frame_powers(samples[max(start - BACKGROUND_REACH, 0) : stop + BACKGROUND_REACH])
    return _compute_decibel(float(np.quantile(around, BACKGROUND_SHARE)), float(speech))


def _compute_frame_powers(samples: Samples) -> np.ndarray:
    """Return the mean power of each frame of 20 ms, [frames]."""
    count = len(samples) // BACKGROUND_FRAME
    frames = samples[: count * BACKGROUND_FRAME].astype(np.float64).reshape(count, BACKGROUND_FRAME)
    powers: np.ndarray = np.square(frames).mean(axis=1)
    return powers


def find_longest_pause(regions: list[Region]) -> float:
    """Return the longest gap between neighbouring regions in seconds; 0 with fewer than two regions."""
    pauses = (Region(left.stop, right.start).seconds for left, right in itertools.pairwise(regions))
    return round(max(pauses, default=0.0), 3)


def measure_pitch(speech: Samples) -> float | None:
    """Return the median fundamental frequency in Hz (YIN) of the frames with at least half the mean power: vowels, where it is defined."""
    if len(speech) < PITCH_FRAME or not speech.any():
        return None
    frames = np.lib.stride_tricks.sliding_window_view(speech, PITCH_FRAME)[::PITCH_HOP]
    power = np.square(frames, dtype=np.float64).mean(axis=1)
    low, high = PITCH_HZ
    heights = import_librosa().yin(
        speech, fmin=low, fmax=high, sr=MASTER_RATE, frame_length=PITCH_FRAME, hop_length=PITCH_HOP, center=False
    )
    return round(float(np.median(heights[power >= power.mean() / 2])), 1)


def measure_repeated_share(text: str) -> float:
    """Return the share of words that repeat the preceding ones: a single word from its third occurrence, a phrase from its second."""
    words = WORD.findall(text.casefold())
    repeats = {index for size in range(1, PHRASE_WORDS + 1) for index in _find_repeats(words, size)}
    return round(len(repeats) / len(words), 3) if words else 0.0


def measure_outside_speech_share(units: list[TextUnit], regions: list[Region]) -> float | None:
    """Return the share of words whose middle is outside speech; None without Whisper word times. A single one among others does not count:
    the text is usually right, and only its time is wrong."""
    if not units:
        return None
    middles = [(unit.start + unit.stop) // 2 for unit in units]
    outside = sum(not _cut_regions(middle - WORD_TIME_ERROR, middle + WORD_TIME_ERROR, regions) for middle in middles)
    return round(outside / len(units), 3) if outside > 1 or len(units) == 1 else 0.0


def _find_repeats(words: list[str], size: int) -> set[int]:
    """Return the indices of words in repetitions of the `size` preceding words; one repetition of a single word is allowed ("very, very
    good")."""
    copies = {start for start in range(size, len(words) - size + 1) if words[start : start + size] == words[start - size : start]}
    if size == 1:
        copies = {start for start in copies if start - 1 in copies}
    return {index for start in copies for index in range(start, start + size)}


def _cut_regions(start: int, stop: int, regions: list[Region]) -> list[Region]:
    """Return the parts of the sorted regions inside `start:stop`."""
    first = bisect_right(regions, start, key=lambda region: region.stop)
    last = bisect_left(regions, stop, key=lambda region: region.start)
    return [Region(max(region.start, start), min(region.stop, stop)) for region in regions[first:last]]


def _compute_power(samples: np.ndarray) -> float:
    return float(np.square(samples).mean()) if len(samples) else 0.0


def _compute_decibel(power: float, reference: float) -> float:
    if power <= 0.0 or reference <= 0.0:
        return QUIETEST_DB if power <= 0.0 else -QUIETEST_DB
    return round(max(10.0 * float(np.log10(power / reference)), QUIETEST_DB), 1)
