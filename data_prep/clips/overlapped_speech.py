"""Overlapped speech: the share of a clip in which a second voice speaks at the same time, from its pitch.

In each frame of 64 ms the strongest pitch is found and its harmonics are masked; a second voice leaves harmonics of another pitch between
them. Measures of both pitches, with those of the neighbouring frames, go through a network of 16 hidden units. All of it is below 2 kHz, so
telephone sound is judged as wide-band sound is. `workshop/benchmarks/_overlap_fitting.py` made the weights and
`workshop/benchmarks/overlapped_speech.py` measures the error rates on other voices.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import MASTER_RATE, Samples
from overtone.finetune.storage import strict_json

RATE = 6000
"""Hz that the clip is resampled to: only harmonics below `TOP_HZ` are used."""
FRAME, HOP, POINTS = RATE * 64 // 1000, RATE * 20 // 1000, RATE * 256 // 1000
"""Samples of a frame and between two frames; points of the Fourier transform."""
TOP_HZ = 2000.0
BIN_HZ = RATE / POINTS
BINS = int(TOP_HZ / BIN_HZ)
PITCHES = np.geomspace(70.0, 420.0, 160)
"""Candidates in Hz, 1.1 % apart."""
MOST_HARMONICS = 12
BLOCK = 3000
"""Frames that are processed at once: a minute, which needs 60 MB."""
TOOTH_HZ = 12.0
"""Half of the width of a harmonic in the comb of a pitch."""
FLOOR_DB = -45.0
"""Floor of the spectrum, relative to the strongest bin of the frame."""
MASK_HZ, MASK_SHARE = 20.0, 0.012
"""Half of the width of the mask of a harmonic: constant, and relative to its frequency, since the pitch changes within a frame."""
LEAST_FREE = 0.25
"""Share of the comb of a second pitch that the mask must leave free."""
RELATED = (1, 2, 3, 4, 1 / 2, 1 / 3, 1 / 4, 3 / 2, 2 / 3)
"""Ratios to the first pitch at which there is no second one: octave errors and subharmonics of a creaky voice."""
RELATED_TOLERANCE = 0.04
LOUD_DB = -25.0
"""Frames below this level, relative to the loudest one, are not judged."""
NEAR, FAR = 2, 6
"""Frames on each side, for the measures of the neighbourhood."""
FEWEST_FRAMES = 25
"""Loud frames that a clip must have: half a second."""
CERTAIN = 0.8
"""Probability from which a frame counts as overlapped."""
WEIGHTS = Path(__file__).with_suffix(".json")

Matrix = NDArray[np.float32]


class Network(NamedTuple):
    """Weights of the network; `D` measures of a frame and its neighbourhood."""

    mean: Matrix
    """[D] means of the training frames."""
    deviation: Matrix
    """[D] standard deviations of the training frames."""
    hidden: Matrix
    """[D, 16]"""
    hidden_bias: Matrix
    """[16]"""
    output: Matrix
    """[16]"""
    output_bias: Matrix
    """A number."""


def measure_overlap(samples: Samples) -> float | None:
    """Return the share of the loud frames in which two voices speak; None for less than half a second of them. `samples`: [n] at
    `MASTER_RATE`."""
    measures, levels = measure_frames(samples)
    loud = levels > LOUD_DB
    if loud.sum() < FEWEST_FRAMES:
        return None
    return round(float((compute_probabilities(load_network(), measures[loud]) > CERTAIN).mean()), 3)


@functools.cache
def load_network() -> Network:
    """Load the network with the weights beside this module."""
    stored = strict_json.loads(WEIGHTS.read_bytes())
    assert isinstance(stored, dict)
    return Network(*(np.array(stored[name], np.float32) for name in Network._fields))


def compute_probabilities(network: Network, measures: Matrix) -> Matrix:
    """Return the probability [n] that two voices speak, of frames with `measures` [n, D]."""
    normal = (measures - network.mean) / network.deviation
    hidden = np.tanh(normal @ network.hidden + network.hidden_bias)
    found: Matrix = 1 / (1 + np.exp(-(hidden @ network.output + network.output_bias)))
    return found


def measure_frames(samples: Samples) -> tuple[Matrix, Matrix]:
    """Return (measures [n, D], levels [n] in dB below the loudest frame) of the frames of a clip, `samples` [m] at `MASTER_RATE`."""
    import soxr

    low = np.asarray(soxr.resample(samples, MASTER_RATE, RATE), np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(low, (0, max(0, FRAME - len(low)))), FRAME)[::HOP]
    power = np.square(frames).mean(axis=1)
    levels = 10 * np.log10(np.maximum(power, 1e-20) / max(float(power.max()), 1e-20))
    blocks = [slice(start, start + BLOCK) for start in range(0, len(frames), BLOCK)]
    measures = [add_neighbourhood(measure_pitches(compute_spectrum(frames[block]), levels[block])) for block in blocks]
    return np.concatenate(measures), levels


def compute_spectrum(frames: Matrix) -> Matrix:
    """Return [n, BINS] magnitudes below `TOP_HZ` of frames [n, FRAME]."""
    windowed = frames * np.hanning(FRAME).astype(np.float32)
    return np.abs(np.fft.rfft(windowed, POINTS, axis=1))[:, :BINS].astype(np.float32)


def measure_pitches(spectrum: Matrix, levels: Matrix) -> Matrix:
    """Return [n, 13] measures of the two strongest pitches of each frame, scaled to about the same size. `spectrum`: [n, BINS]
    magnitudes."""
    decibels = 20 * np.log10(np.maximum(spectrum, spectrum.max(axis=1, keepdims=True) * 10 ** (FLOOR_DB / 20)) + np.float32(1e-9))
    alone = compute_salience(decibels, None)
    tracked = follow_pitches(alone)
    first = _refine(alone, tracked.argmax(axis=1))
    pitch = PITCHES[first].astype(np.float32)
    frequencies = (np.arange(BINS) * BIN_HZ).astype(np.float32)
    order = frequencies / pitch[:, None]
    free = (np.abs(order - np.round(order)) * pitch[:, None] > MASK_HZ + MASK_SHARE * frequencies).astype(np.float32)
    related = _make_related()[first]  # [n, pitches] True for a pitch that has one of the ratios `RELATED` to the first
    rest = np.where(related, np.float32(0), compute_salience(decibels, free))
    rest_tracked = follow_pitches(rest)
    second = rest_tracked.argmax(axis=1)
    others = np.where(related, np.float32(0), tracked).max(axis=1)
    energy = np.square(spectrum)
    unexplained = 10 * np.log10((energy * free).sum(axis=1) / np.maximum(energy.sum(axis=1), 1e-20) + 1e-6)
    octaves, second_octaves = np.log2(PITCHES[first]), np.log2(PITCHES[second])
    return np.stack(
        [
            tracked.max(axis=1),
            rest_tracked.max(axis=1),
            rest.max(axis=1),
            unexplained,
            10 * free.mean(axis=1),
            others,
            4 * octaves,
            4 * second_octaves,
            20 * np.minimum(np.abs(np.diff(octaves, prepend=octaves[:1])), 0.5),
            20 * np.minimum(np.abs(np.diff(second_octaves, prepend=second_octaves[:1])), 0.5),
            np.maximum(levels, -40) / 4,
            (decibels.mean(axis=1) - decibels.max(axis=1)) / 4,
            alone.max(axis=1) - others,
        ],
        axis=1,
    ).astype(np.float32)


def compute_salience(decibels: Matrix, free: Matrix | None) -> Matrix:
    """Return the level [n, pitches] of the harmonics of each candidate above that of the middles between them, in dB, of spectra [n, BINS].

    `free`: [n, BINS] 1 where the spectrum counts, 0 where it is masked; None: all counts. Candidates that are mostly masked have 0.
    """
    combs, gaps = make_combs()
    if free is None:
        found: Matrix = decibels @ (combs / combs.sum(axis=0)) - decibels @ (gaps / gaps.sum(axis=0))
        return found
    masked, on, between = decibels * free, free @ combs, free @ gaps
    found = (masked @ combs) / np.maximum(on, 1e-3) - (masked @ gaps) / np.maximum(between, 1e-3)
    found[(on < LEAST_FREE * combs.sum(axis=0)) | (between < LEAST_FREE * gaps.sum(axis=0))] = 0
    return found


@functools.cache
def make_combs() -> tuple[Matrix, Matrix]:
    """Return ([BINS, pitches] triangles at the harmonics of each candidate, the same at the middles below them)."""
    frequencies = np.arange(BINS)[:, None] * BIN_HZ
    combs, gaps = np.zeros((BINS, len(PITCHES))), np.zeros((BINS, len(PITCHES)))
    for harmonic in range(1, MOST_HARMONICS + 1):
        fits = (harmonic + 0.5) * PITCHES <= TOP_HZ
        combs = np.maximum(combs, fits * (1 - np.abs(frequencies - harmonic * PITCHES) / TOOTH_HZ))
        gaps = np.maximum(gaps, fits * (1 - np.abs(frequencies - (harmonic - 0.5) * PITCHES) / TOOTH_HZ))
    return combs.astype(np.float32), gaps.astype(np.float32)


def follow_pitches(salience: Matrix) -> Matrix:
    """Return the salience [n, pitches], averaged over five frames along pitches that change by at most one candidate a frame."""
    near = _widen(salience)
    far = _widen(near)
    total: Matrix = salience + _shift(near, 1) + _shift(near, -1) + _shift(far, 2) + _shift(far, -2)
    return total / np.float32(5)


def add_neighbourhood(measures: Matrix) -> Matrix:
    """Return [n, 4 k] measures [n, k] of each frame, their means over the near and the far neighbours, and their maxima over the far
    ones."""
    padded = np.pad(measures, ((FAR, FAR), (0, 0)), mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * FAR + 1, axis=0)
    near = around[..., FAR - NEAR : FAR + NEAR + 1]
    return np.concatenate([measures, near.mean(axis=-1), around.mean(axis=-1), around.max(axis=-1)], axis=1)


def _refine(salience: Matrix, tracked: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the index [n] of the strongest candidate within two of the tracked one."""
    near = np.clip(tracked[:, None] + np.arange(-2, 3), 0, len(PITCHES) - 1)
    best = np.take_along_axis(salience, near, axis=1).argmax(axis=1)
    return near[np.arange(len(near)), best]


@functools.cache
def _make_related() -> NDArray[np.bool_]:
    ratios = PITCHES[None] / PITCHES[:, None]
    return np.any([np.abs(ratios / ratio - 1) < RELATED_TOLERANCE for ratio in RELATED], axis=0)


def _widen(salience: Matrix) -> Matrix:
    """Return the maximum over each candidate and its neighbours."""
    wide = salience.copy()
    np.maximum(wide[:, 1:], salience[:, :-1], out=wide[:, 1:])
    np.maximum(wide[:, :-1], salience[:, 1:], out=wide[:, :-1])
    return wide


def _shift(salience: Matrix, frames: int) -> Matrix:
    """Return the salience of the frame that is so many frames before; 0 outside of the clip."""
    moved = np.zeros_like(salience)
    if frames > 0:
        moved[frames:] = salience[:-frames]
    else:
        moved[:frames] = salience[-frames:]
    return moved
