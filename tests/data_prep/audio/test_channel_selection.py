"""Which channels become the mono sound: real and synthetic voices with noise, silence, delays and another voice beside them."""

from __future__ import annotations

import numpy as np
import pytest

from overtone.data_prep.audio.channel_selection import AUTO, LEFT, MIX, RIGHT, ChannelLevels, choose_channels, find_own_sound, name_channel

RATE = 24_000
TURN = 3 * RATE


def choose(channels, wanted=AUTO, block=16_384):
    samples = np.stack(channels, axis=1).astype(np.float32)
    levels = ChannelLevels(RATE, samples.shape[1])
    for start in range(0, len(samples), block):
        levels.add(samples[start : start + block])
    return choose_channels(wanted, np.atleast_2d(np.cov(samples.T)), levels.measure())


def white(like, seed=0):
    """Noise with the power of the voice."""
    return np.random.default_rng(seed).standard_normal(len(like)) * like.std()


@pytest.fixture(scope="module")
def voice(railway):
    return railway.samples[: 16 * RATE].astype(np.float64)


def delay(voice, seconds):
    return np.concatenate([np.zeros(round(seconds * RATE)), voice])[: len(voice)]


@pytest.mark.parametrize("clean", [0, 1], ids=["left", "right"])
@pytest.mark.parametrize("db", [-20, -10, 0, 10])
@pytest.mark.parametrize("has_voice", [True, False], ids=["voice and noise", "noise"])
def test_a_clean_channel_is_used_alone_beside_a_noisy_one(voice, clean, db, has_voice) -> None:
    noisy = has_voice * voice + 10 ** (db / 20) * white(voice)
    found = choose([voice, noisy] if clean == 0 else [noisy, voice])
    assert found.name == (LEFT, RIGHT)[clean] and found.weights.tolist() == np.eye(2)[clean].tolist()
    assert "dB in left" in found.note and "dB in right" in found.note


def test_a_faint_voice_is_preferred_to_a_loud_hum(voice) -> None:
    hum = np.sin(2 * np.pi * 50 * np.arange(len(voice)) / RATE)
    assert choose([hum, 0.008 * voice]).name == RIGHT
    assert choose([hum, 0 * voice]).name == LEFT


@pytest.mark.parametrize(
    "other",
    [
        lambda voice: voice,
        lambda voice: 0.3 * voice,
        lambda voice: delay(voice, 0.004),
        lambda voice: voice + 0.003 * white(voice),
        lambda voice: 0.7 * voice + 0.3 * delay(voice, 0.015),
    ],
    ids=["equal", "fainter", "two microphones", "noise of 50 dB below", "room"],
)
def test_the_same_voice_on_both_channels_is_their_mean(voice, other) -> None:
    found = choose([voice, other(voice)])
    assert (found.name, found.note, found.apart) == (MIX, "", ())


def test_inverted_and_silent_channels_are_said(voice) -> None:
    assert "correlation -1.00" in choose([voice, -voice]).note
    assert choose([voice, 0 * voice]).note.endswith("since right is silent or at least 40 dB weaker")
    assert choose([0 * voice, voice, white(voice)]).name == "2"


def test_unused_inputs_of_a_recorder_change_nothing_for_the_others(voice) -> None:
    turns = np.arange(len(voice)) // TURN % 2 == 0
    left, right, unused = voice * turns, np.roll(voice, TURN) * ~turns, 1e-4 * white(voice, 2)
    found = choose([unused, left, 0 * voice, right])
    assert (found.weights.tolist(), found.name, found.apart) == ([0, 0.5, 0, 0.5], MIX, (1, 3))
    assert found.note == "only the mean of channels 2, 4 is used, since the others are silent or at least 40 dB weaker"
    found = choose([0 * voice, voice + white(voice), voice])
    assert found.name == "3" and "dB in 2" in found.note and "dB in 3" in found.note
    assert choose([voice, 0 * voice, -voice]).note.startswith("only channel ")


@pytest.mark.parametrize("crosstalk", [0.0, 0.03, 0.2])
def test_two_voices_in_turns_are_apart(voice, crosstalk) -> None:
    turns = np.arange(len(voice)) // TURN % 2 == 0
    left, right = voice * turns, np.roll(voice, TURN) * ~turns
    found = choose([left + crosstalk * right, right + crosstalk * left])
    assert found.apart == (0, 1) and found.name == MIX


def test_a_channel_that_the_user_names_is_used_whatever_it_holds(voice) -> None:
    noisy = white(voice)
    assert choose([voice, noisy], RIGHT).weights.tolist() == [0, 1]
    assert choose([voice, noisy, voice], "3").weights.tolist() == [0, 0, 1]
    assert choose([voice, noisy], MIX).weights.tolist() == [0.5, 0.5]
    assert [name_channel(index, 2) for index in (0, 1)] == [LEFT, RIGHT] and name_channel(0, 3) == "1"


def test_levels_do_not_depend_on_the_blocks(voice) -> None:
    one, other = (choose([voice, white(voice)], block=block) for block in (1_000, 100_003))
    assert one.note == other.note


def test_own_sound_is_where_no_other_channel_is_as_loud() -> None:
    levels = np.full((100, 2), -60.0)
    levels[10:40, 0], levels[50:80, 1], levels[85:95] = -20, -30, -25
    own = find_own_sound(levels)
    assert own[10:40, 0].all() and own[50:80, 1].all() and own.sum() == 60
