"""Who speaks on which channel: two synthetic voices in turns, alone, with crosstalk, and with bursts of noise."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import soundfile

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, convert_position, load_track, probe_recording, read_audio
from overtone.data_prep.segmentation.channel_voices import drop_bleed, examine_channels, repeats_others, select_channel, settle_channels
from tests.data_prep.conftest import HARBOUR, RAILWAY

SENTENCES = 3


def cut_sentences(path):
    audio = read_audio(path, SPEECH_RATE)
    said = json.loads(path.with_name(f"{path.stem}.transcript.json").read_text())[:SENTENCES]
    return [audio.samples[int((one["start"] - 0.2) * SPEECH_RATE) : int((one["end"] + 0.2) * SPEECH_RATE)] for one in said]


@pytest.fixture(scope="module")
def interview():
    """[n, 2] at 16 kHz: six sentences in turns, the first on the left."""
    pieces = []
    for mine, other in zip(cut_sentences(RAILWAY), cut_sentences(HARBOUR), strict=True):
        pieces += [np.stack([mine, 0 * mine], 1), np.stack([0 * other, other], 1)]
    whole = np.concatenate(pieces)
    return whole + 1e-4 * np.random.default_rng(0).standard_normal(whole.shape).astype(np.float32)


@pytest.fixture
def settle(tmp_path, vad_of_channel):
    def run(samples):
        path = tmp_path / "stereo.flac"
        soundfile.write(path, samples, SPEECH_RATE)
        return settle_channels(probe_recording(path), lambda track: load_track(path, track, SPEECH_RATE)[0], vad_of_channel)

    return run


@pytest.fixture(scope="module")
def vad_of_channel(vad):
    from overtone.data_prep.segmentation.vad import find_speech

    return lambda audio: find_speech(vad, audio, convert_position(len(audio.samples), SPEECH_RATE, MASTER_RATE))


@pytest.mark.parametrize("crosstalk", [0.0, 0.1], ids=["none", "-20 dB"])
def test_two_people_on_two_channels_are_a_problem(interview, settle, crosstalk) -> None:
    track, problem = settle(interview + crosstalk * interview[:, ::-1])
    assert track.channel == "mix" and problem.startswith("2 people on 2 channels (left alone ") and "--channels split" in problem


def test_unused_inputs_do_not_hide_two_people(interview, settle) -> None:
    noise = 1e-5 * np.random.default_rng(2).standard_normal(len(interview))
    _, problem = settle(np.stack([interview[:, 0], noise, interview[:, 1], 0 * noise], 1))
    assert problem.startswith("2 people on 2 channels (1 alone ")


def test_a_channel_with_both_voices_is_used_alone(interview, settle) -> None:
    both = interview.copy()
    both[:, 1] += both[:, 0]
    track, problem = settle(both)
    assert (track.weights, problem) == ((0.0, 1.0), "") and "only the right channel is used" in track.channel_note


@pytest.mark.parametrize("has_voice", [0.0, 1.0], ids=["noise", "voice and noise"])
def test_bursts_of_noise_on_a_channel_are_nobody(interview, settle, has_voice) -> None:
    voice = interview.sum(axis=1)
    random = np.random.default_rng(1)
    bursts = np.repeat(random.random(len(voice) // 8000 + 1) < 0.3, 8000)[: len(voice)] * random.standard_normal(len(voice))
    track, problem = settle(np.stack([voice, has_voice * voice + voice.std() * bursts], 1))
    assert (track.weights, problem) == ((1.0, 0.0), "")


def test_crosstalk_is_left_out_of_each_channel(interview, tmp_path, vad_of_channel) -> None:
    path = tmp_path / "stereo.flac"
    soundfile.write(path, interview + 0.1 * interview[:, ::-1], SPEECH_RATE)
    track = probe_recording(path)
    load = lambda one: load_track(path, one, SPEECH_RATE)[0]  # noqa: E731
    found = examine_channels(track, load, vad_of_channel)
    all_speech = [vad_of_channel(load(select_channel(track, index))) for index in (0, 1)]
    own = [drop_bleed(all_speech[index], found, index) for index in (0, 1)]
    assert all(sum(region.seconds for region in own[index]) < 0.8 * sum(one.seconds for one in all_speech[index]) for index in (0, 1))
    edges = np.cumsum([0, *(len(one) for pair in zip(cut_sentences(RAILWAY), cut_sentences(HARBOUR), strict=True) for one in pair)])
    for index in (0, 1):
        for number, (start, stop) in enumerate(pairwise(edges)):
            inside = sum(one.start < stop * 3 // 2 - 6000 and one.stop > start * 3 // 2 + 6000 for one in own[index])
            assert bool(inside) == (number % 2 == index), f"sentence {number} on channel {index}"
    assert not repeats_others(found, 0) and not repeats_others(found, 1)


def test_the_same_sound_twice_is_one_speaker(interview, tmp_path, vad_of_channel) -> None:
    voice = interview.sum(axis=1)
    path = tmp_path / "same.flac"
    soundfile.write(path, np.stack([voice, voice], 1), SPEECH_RATE)
    found = examine_channels(probe_recording(path), lambda one: load_track(path, one, SPEECH_RATE)[0], vad_of_channel)
    assert not repeats_others(found, 0) and repeats_others(found, 1)


def test_a_selected_channel_keeps_its_own_offset(tmp_path) -> None:
    tone = np.sin(np.arange(SPEECH_RATE) / 5)
    soundfile.write(tmp_path / "offset.flac", np.stack([0.1 * tone, 0.1 * tone + 0.3], 1), SPEECH_RATE)
    track = select_channel(probe_recording(tmp_path / "offset.flac"), 1)
    assert abs(load_track(tmp_path / "offset.flac", track, SPEECH_RATE)[0].samples.mean()) < 1e-4
    assert track.channel == "right"
