"""Chooses which channels of a recording become its mono sound. Everything that reads sound uses this decision.

The mean of channels is right for the same sound on all of them, and wrong for a clean channel beside a noisy one, for channels that cancel
each other, and for two people on a channel each. The powers of 100 ms frames, collected while the file is decoded, tell these apart: noise
is as loud in pauses as in speech, and whoever has a channel of their own is loud there and not in the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.stream_reader import Samples

AUTO, LEFT, RIGHT, MIX = "auto", "left", "right", "mix"
"""Values of a channel choice; the others are numbers of channels from 1."""
FRAME_SECONDS = 0.1
FLOOR_DB = -90.0
"""Power of the last of 16 bits. Lower powers are raised to it: otherwise digital silence would be infinitely clearer than a quiet room."""
QUIET = 10.0
"""Percentile of the powers of frames that is the power of the pauses."""
CLEAR_DB = 40.0
"""Speech so far above its pauses is clean; more is no reason to choose a channel."""
MARGIN_DB = 1.5
"""Maximum clearness, in dB, that the mean may lose against the best channel. Independent noise of equal power makes the mean 3 dB clearer;
with 6.6 dB more noise in one channel the mean reaches this margin."""
DEAD = 1e-4
"""Power, relative to that of the loudest channel, below which a channel is dead: -40 dB."""
CANCELLED = 0.25
"""Power of the mean relative to the mean power; equal channels give 1, unrelated ones 1/2, opposite ones 0."""
LEAST_LEAD_DB = 10.0
"""Minimum lead in clearness, in dB, with which a dead channel is used instead of a loud one: speech at -40 dB beside a hum."""
LEAST_FRAMES = 10
"""Minimum number of frames: fewer do not show which of them are pauses."""
ACTIVE_DB, ACTIVE_BELOW_DB, OWN_DB = 9.0, 20.0, 8.0
"""A channel is active in frames at least `ACTIVE_DB` above its pauses and at most `ACTIVE_BELOW_DB` below its mean power. A sound is its
own if it is `OWN_DB` louder there than in every other channel, each relative to its mean power. Crosstalk is weaker than that, two
microphones in one room differ by less."""
OWN_SHARE, OWN_SECONDS = 0.05, 1.0
"""Least share of the active frames, and least duration, of a channel's own sound."""


class ChannelChoice(NamedTuple):
    """The mix of the channels of a recording to mono."""

    weights: NDArray[np.float64]
    """[channels] weights of the sum."""
    name: str
    """`mono`, `mix`, or the name of the only channel that is used."""
    note: str = ""
    """The reason, with numbers, why only one channel is used; empty if the user chose it, or nothing is lost."""
    apart: tuple[int, ...] = ()
    """Channels that have a sound of their own. Several of them may be several people, which only speech detection can decide."""


class ChannelLevels:
    """Collects the powers of frames of each channel, and of their mean, while a recording is decoded: 4 bytes per frame and channel."""

    def __init__(self, rate: int, channels: int) -> None:
        self._frame, self._channels = max(1, round(FRAME_SECONDS * rate)), channels
        self._rest = np.zeros((0, channels), np.float32)
        self._powers = list[NDArray[np.float32]]()

    def add(self, block: Samples) -> None:
        """Collect a block [n, channels]; a recording with one channel needs no levels."""
        if self._channels == 1:
            return
        samples = np.concatenate([self._rest, block]) if len(self._rest) else block
        whole = len(samples) // self._frame * self._frame
        self._rest = samples[whole:].copy()
        if whole:
            framed = samples[:whole].reshape(-1, self._frame, self._channels)
            of_all = np.concatenate([framed, framed.mean(axis=2, keepdims=True)], axis=2)
            self._powers.append(of_all.var(axis=1, dtype=np.float64).astype(np.float32))

    def measure(self) -> NDArray[np.float64]:
        """Return [frames, channels + 1] powers in dB of full scale, where the last column is that of the mean."""
        powers = np.concatenate(self._powers) if self._powers else np.zeros((0, self._channels + 1), np.float32)
        return convert_to_decibels(powers)


def choose_channels(wanted: str, covariance: NDArray[np.float64], levels: NDArray[np.float64]) -> ChannelChoice:
    """Return which channels to use, by the user's choice (one that the recording has) or, with `auto`, by `covariance` [channels, channels]
    and `levels` (`ChannelLevels`)."""
    count = len(covariance)
    if (index := find_channel(wanted)) is not None:
        return ChannelChoice(np.eye(count)[index], name_channel(index, count))
    mean = np.full(count, 1 / count)
    if count == 1:
        return ChannelChoice(mean, "mono")
    names = [name_channel(index, count) for index in range(count)]
    return ChannelChoice(mean, MIX) if wanted == MIX else _choose_by_levels(covariance, levels, names)


def find_channel(wanted: str) -> int | None:
    """Return the index of the channel that the user named; None if the choice names none."""
    return {LEFT: 0, RIGHT: 1}.get(wanted) if not wanted.isdecimal() else int(wanted) - 1


def name_channel(index: int, count: int) -> str:
    """Return the name of a channel, as `--channels` takes it."""
    if count == 1:
        return "mono"
    return (LEFT, RIGHT)[index] if count == 2 else str(index + 1)


def convert_to_decibels(powers: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the powers in dB of full scale, at least `FLOOR_DB`."""
    return 10 * np.log10(np.maximum(powers.astype(np.float64), 10 ** (FLOOR_DB / 10)))


def measure_clearness(levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many dB the mean power of each column of `levels` [frames, columns] is above its pauses. Noise has 0, speech in a quiet
    room 40 or more."""
    return _measure_means(levels) - np.percentile(levels, QUIET, axis=0)


def find_own_sound(levels: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return [frames, channels]: True where each of the channels of `levels` is active and no other one is nearly as loud. Dead channels,
    whose noise is always as loud as in their mean, are not compared with."""
    means = _measure_means(levels)
    loudness = levels - means
    active = (levels > np.percentile(levels, QUIET, axis=0) + ACTIVE_DB) & (loudness > -ACTIVE_BELOW_DB)
    compared = np.where(means < means.max() + 10 * np.log10(DEAD), -np.inf, loudness)
    louder = np.stack([loudness[:, index] - np.delete(compared, index, axis=1).max(axis=1) for index in range(levels.shape[1])], axis=1)
    return active & (louder > OWN_DB)


def _measure_means(levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean power of each column in dB."""
    return 10 * np.log10(np.mean(10 ** (levels / 10), axis=0))


def _choose_by_levels(covariance: NDArray[np.float64], levels: NDArray[np.float64], names: list[str]) -> ChannelChoice:
    power, count = np.diag(covariance), len(covariance)
    mean, is_dead = np.full(count, 1 / count), power < DEAD * power.max()
    clear = np.minimum(measure_clearness(levels), CLEAR_DB) if len(levels) >= LEAST_FRAMES else np.zeros(count + 1)
    ranks = np.round((clear[:-1] - LEAST_LEAD_DB * is_dead) / MARGIN_DB)
    best = max(range(count), key=lambda index: (ranks[index], power[index]))
    name = names[best]
    one = ChannelChoice(np.eye(count)[best], name)
    if is_dead.any() and not is_dead[best]:
        if count - is_dead.sum() > 1:
            return _choose_among(np.flatnonzero(~is_dead), covariance, levels, names)
        dead = ", ".join(names[index] for index in range(count) if is_dead[index])
        return one._replace(note=f"{describe_only(name)}, since {dead} is silent or at least 40 dB weaker")
    if mean @ covariance @ mean < CANCELLED * power.mean():
        least = float(np.min(covariance / np.sqrt(np.outer(power, power) + np.finfo(float).tiny)))
        return one._replace(note=f"{describe_only(name)}, since channels cancel each other in the mean (correlation {least:.2f})")
    apart = _find_apart(levels[:, :-1]) if len(levels) >= LEAST_FRAMES else ()
    if len(apart) < 2 and clear[best] - clear[-1] > MARGIN_DB:
        shown = ", ".join(f"{clear[index]:.0f} dB in {names[index]}" for index in range(count))
        note = f"{describe_only(name)}: sound is above its pauses by {shown}, and by {clear[-1]:.0f} dB in the mean"
        return one._replace(note=note, apart=apart)
    return ChannelChoice(mean, MIX, apart=apart)


def _choose_among(live: NDArray[np.intp], covariance: NDArray[np.float64], levels: NDArray[np.float64], names: list[str]) -> ChannelChoice:
    """Return the choice of several `live` channels; the others are dead, which changes the mean by a factor alone."""
    listed = [names[index] for index in live]
    found = _choose_by_levels(covariance[np.ix_(live, live)], levels[:, [*live, -1]], listed)
    weights = np.zeros(len(names))
    weights[live] = found.weights
    note = found.note or f"only the mean of channels {', '.join(listed)} is used, since the others are silent or at least 40 dB weaker"
    return ChannelChoice(weights, found.name, note, tuple(int(live[index]) for index in found.apart))


def describe_only(name: str) -> str:
    """Return the beginning of a note on a recording of which only one channel is used."""
    return f"only the {name} channel is used" if name in (LEFT, RIGHT) else f"only channel {name} is used"


def _find_apart(levels: NDArray[np.float64]) -> tuple[int, ...]:
    """Return the channels with enough sound of their own."""
    own = find_own_sound(levels)
    some = levels > np.percentile(levels, QUIET, axis=0) + ACTIVE_DB
    least = max(OWN_SECONDS / FRAME_SECONDS, OWN_SHARE * some.any(axis=1).sum())
    return tuple(int(index) for index in np.flatnonzero(own.sum(axis=0) >= least))
