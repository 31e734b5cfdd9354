"""Finds who speaks on which channel of a recording whose channels have sounds of their own, by speech detection on each.

`channel_selection` finds such channels by their levels. A channel whose own sound is speech has a person of its own; two of them are two
people, and their mean would be one voice made of two. A channel whose own sound is not speech has noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.channel_selection import (
    FRAME_SECONDS,
    convert_to_decibels,
    describe_only,
    find_own_sound,
    measure_clearness,
    name_channel,
)
from overtone.data_prep.audio.waveform import MASTER_RATE, Audio, Track
from overtone.data_prep.segmentation.vad import Region

MOST_CHANNELS = 8
"""Channels that are examined; a recording with more is mixed."""
OWN_SHARE, OWN_SECONDS = 0.05, 2.0
"""Least share of all speech, and least duration, of the speech of a person who is on one channel alone."""
OWN_PART = 0.3
"""A region of speech is on one channel alone if no other is nearly as loud in more of it than this. Measured: 5 s turns of two people with
crosstalk of -20 dB pass for 0.52 of all speech or more, two people who talk all the time for 0.34; the same speech on both channels, with
bursts of noise on one, for 0.00."""
BLEED_SHARE = 0.5
"""A region of speech on one channel is another person's if another channel is louder in more of it than this."""

LoadChannel = Callable[[Track], Audio]
"""The sound at 16 kHz of a track."""
FindSpeech = Callable[[Audio], list[Region]]


class ChannelSpeech(NamedTuple):
    """Frames of 100 ms of all channels of a recording."""

    levels: NDArray[np.float64]
    """[frames, channels] in dB."""
    speech: NDArray[np.bool_]
    """[frames, channels]: True where speech is detected."""


def select_channel(track: Track, index: int) -> Track:
    """Return the track of one channel alone."""
    weights = tuple(np.eye(len(track.weights))[index].tolist())
    name = name_channel(index, len(weights))
    return track.model_copy(update={"weights": weights, "offset": track.means[index], "channel": name, "channel_note": "", "apart": ()})


def examine_channels(track: Track, load: LoadChannel, find_speech: FindSpeech) -> ChannelSpeech:
    """Decode each channel by itself, one after the other, and detect its speech."""
    levels, speech = [], []
    for index in range(len(track.weights)):
        audio = load(select_channel(track, index))
        levels.append(_measure_levels(audio))
        mask = np.zeros(len(levels[-1]), bool)
        for region in find_speech(audio):
            first, last = (round(edge / MASTER_RATE / FRAME_SECONDS) for edge in region)
            mask[first : max(last, first + 1)] = True
        speech.append(mask)
    return ChannelSpeech(np.stack(levels, axis=1), np.stack(speech, axis=1))


def settle_channels(track: Track, load: LoadChannel, find_speech: FindSpeech) -> tuple[Track, str]:
    """Return (track, problem) for a track with channels `apart`: the track to use, and the problem if two people are on two channels, else
    an empty text."""
    count = len(track.weights)
    if not track.apart or count > MOST_CHANNELS:
        return track, ""
    found = examine_channels(track, load, find_speech)
    spoken = max(FRAME_SECONDS, found.speech.any(axis=1).sum() * FRAME_SECONDS)
    own = [measure_own_speech(found, index) for index in range(count)]
    speakers = [index for index in range(count) if own[index] >= max(OWN_SECONDS, OWN_SHARE * spoken)]
    if len(speakers) > 1:
        shares = ", ".join(f"{name_channel(index, count)} alone {own[index] / spoken:.0%}" for index in speakers)
        advice = "--channels split makes a speaker of each, a channel's name takes one, mix takes both as one voice"
        return track, f"{len(speakers)} people on {len(speakers)} channels ({shares} of the speech); {advice}"
    if speakers:
        best = speakers[0]
        why = f"no other channel has speech of its own ({own[best] / spoken:.0%} of all speech is on this one alone)"
    else:
        clear = measure_clearness(found.levels)
        best = max(set(range(count)) - set(track.apart) or range(count), key=lambda index: clear[index])
        why = "others have sounds of their own that are not speech"
    chosen = select_channel(track, best)
    return chosen.model_copy(update={"channel_note": f"{describe_only(chosen.channel)}: {why}"}), ""


def repeats_others(found: ChannelSpeech, index: int) -> bool:
    """Return whether a channel after the first has speech, and none of its own."""
    return index > 0 and bool(found.speech[:, index].any()) and measure_own_speech(found, index) < OWN_SECONDS


def measure_own_speech(found: ChannelSpeech, index: int) -> float:
    """Return the seconds of the regions of speech of a channel in which no other channel is nearly as loud."""
    own, edges = find_own_sound(found.levels)[:, index], np.flatnonzero(np.diff(found.speech[:, index], prepend=False, append=False))
    regions = [(start, stop) for start, stop in edges.reshape(-1, 2) if own[start:stop].mean() > OWN_PART]
    return sum(int(stop - start) for start, stop in regions) * FRAME_SECONDS


def drop_bleed(regions: Sequence[Region], found: ChannelSpeech, index: int) -> list[Region]:
    """Return the regions of speech on channel `index` without those in which another person's voice is audible there, because another
    channel is much louder."""
    others = np.any(np.delete(find_own_sound(found.levels), index, axis=1), axis=1)
    kept = []
    for region in regions:
        first, last = (round(edge / MASTER_RATE / FRAME_SECONDS) for edge in region)
        if np.mean(others[first : max(last, first + 1)]) <= BLEED_SHARE:
            kept.append(region)
    return kept


def _measure_levels(audio: Audio) -> NDArray[np.float64]:
    """Return the levels [frames] in dB; in blocks, since samples may be a mapped file of hours."""
    frame = round(FRAME_SECONDS * audio.rate)
    starts = range(0, len(audio.samples) - frame + 1, frame * 600)
    blocks = [audio.samples[start : start + frame * 600] for start in starts]
    powers = [block[: len(block) // frame * frame].reshape(-1, frame).var(axis=1, dtype=np.float64) for block in blocks]
    return convert_to_decibels(np.concatenate([np.zeros(0), *powers]).astype(np.float32))
