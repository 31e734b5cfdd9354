"""Similarity by hand, between a stranger and the speaker; and encoders that tell two real voices apart."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import torch
from safetensors.torch import load_file

from finetune.errors import UserError
from recipes import voice_clone
from recipes.speech.evaluation import speaker_similarity as likeness
from recipes.speech.evaluation.speaker_similarity import Voices
from tests.recipes.voice_clone import conftest as made

A1, A2, A3, B1 = (Path(name) for name in ("a1", "a2", "a3", "b1"))


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def by_hand(centred: bool = False) -> Voices:
    return Voices({"a": {A1: vector(2, 0), A2: vector(0, 5), A3: vector(1, 1)}, "b": {B1: vector(-1, 0)}}, centred)


def test_the_mean_of_directions_is_what_counts() -> None:
    voices = by_hand()
    assert voices.likeness(vector(3, 3), "a") == pytest.approx(1.0)
    assert voices.likeness(vector(3, 3), "a", frozenset({A2, A3})) == pytest.approx(2**-0.5)
    assert voices.likeness(vector(7, 0), "b") == pytest.approx(-1.0)


def test_without_another_clip_it_is_unknown() -> None:
    assert by_hand().likeness(vector(1, 0), "b", frozenset({B1})) is None
    assert by_hand().likeness(vector(1, 0), "nobody") is None


def test_strangers_are_the_others_of_the_same_data() -> None:
    found = by_hand().strangers()
    # a's clips to b: -1, 0, -√½; b's clip to a's mean direction (45°): -√½
    assert found == pytest.approx([-1.0, 0.0, -(2**-0.5), -(2**-0.5)], abs=1e-6)
    assert Voices({"a": {A1: vector(1, 0)}}, False).strangers() == []


def test_statistics_are_put_on_one_scale() -> None:
    far = Voices({"a": {A1: vector(100, 0.1)}, "b": {B1: vector(102, 0.2)}}, centred=True)
    assert far.likeness(vector(100, 0.1), "b") == pytest.approx(-1.0), "without the scale every cosine would be nearly 1"


def test_a_scale_needs_two_different_ends() -> None:
    assert likeness.scale_position(0.5, 0.25, 0.75) == pytest.approx(0.5)
    assert likeness.scale_position(0.5, 0.8, 0.8) is None


@pytest.mark.parametrize("kind", ["spectral", "own", "independent"])
def test_swapped_speakers_lower_the_similarity(kind: str, nano: Path, tiny_speaker_model: Path) -> None:
    encoder = {
        "spectral": likeness.spectral,
        "own": lambda: likeness.own(nano),
        "independent": lambda: likeness.independent(str(tiny_speaker_model)),
    }[kind]()
    clips = {name: {Path(f"{name}{seconds}"): made.voice(*sound, seconds) for seconds in (0.8, 1.0)} for name, sound in VOICES.items()}
    heard = {name: {path: likeness.embed(encoder, wave) for path, wave in own.items()} for name, own in clips.items()}
    voices = likeness.voices(encoder, heard)  # type: ignore[arg-type]
    spoken = likeness.embed(encoder, made.voice(*VOICES["low"], 1.2))
    assert spoken is not None
    right, swapped = voices.likeness(spoken, "low"), voices.likeness(spoken, "high")
    assert right is not None and swapped is not None
    assert 1 - right < (1 - swapped) / 3, "even with random weights, whose cosines are all high"


def test_a_published_speaker_model_without_safetensors_gives_the_same_vectors(tiny_speaker_model: Path, tmp_path: Path) -> None:
    """As microsoft/wavlm-base-plus-sv is: one pickle, with the names of weights from before torch had parametrizations."""
    folder = shutil.copytree(tiny_speaker_model, tmp_path / "published")
    old = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    weights = load_file(folder / "model.safetensors")
    for new, name in old.items():
        weights = {key.replace(new, name): value for key, value in weights.items()}
    assert any(key.endswith("weight_g") for key in weights)
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    wave = made.voice(*VOICES["low"], 1.0)
    first, second = (likeness.independent(str(each)).vector(wave) for each in (tiny_speaker_model, folder))
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-12)


def test_statistics_tell_two_speakers_of_the_sample_apart_in_other_recordings() -> None:
    encoder = likeness.spectral()
    heard = {name: [likeness.embed(encoder, cut(path)) for path in RECORDINGS[name]] for name in RECORDINGS}
    voices = likeness.voices(
        encoder, {name: {Path(f"{name}{at}"): one for at, one in enumerate(own) if one is not None} for name, own in heard.items()}
    )
    for speaker, other in (("rms", "slt"), ("slt", "rms")):
        for at, vector in enumerate(heard[speaker]):
            assert vector is not None
            own = voices.likeness(vector, speaker, frozenset({Path(f"{speaker}{at}")}))
            stranger = voices.likeness(vector, other)
            assert own is not None and stranger is not None and own > stranger + 0.2


SAMPLE = Path(voice_clone.__file__).parent / "sample"
RECORDINGS = {
    "rms": [(SAMPLE / "rms" / "railway.ogg", 1.0), (SAMPLE / "rms" / "workshop.wav", 1.0), (SAMPLE / "rms" / "railway.ogg", 9.0)],
    "slt": [(SAMPLE / "slt" / "harbour.flac", 1.0), (SAMPLE / "slt" / "kitchen.mp3", 1.0), (SAMPLE / "slt" / "harbour.flac", 9.0)],
}


def cut(place: tuple[Path, float]) -> np.ndarray:
    """Four seconds of a recording, at 24 kHz."""
    path, start = place
    rate = soundfile.info(path).samplerate
    samples, _ = soundfile.read(path, start=round(start * rate), frames=4 * rate, dtype="float32", always_2d=True)
    return soxr.resample(samples.mean(axis=1), rate, 24_000)


VOICES = {"low": (110.0, 0.9), "high": (233.0, 0.5)}


def test_what_is_no_encoder_is_refused(nano: Path, tmp_path: Path) -> None:
    for name in (str(tmp_path), str(nano)):
        with pytest.raises(UserError, match="no speaker verification model of transformers"):
            likeness.independent(name)


def test_too_short_and_silent_clips_have_no_voice() -> None:
    encoder = likeness.spectral()
    assert likeness.embed(encoder, np.ones(1000, np.float32)) is None
    assert likeness.embed(encoder, np.zeros(24_000, np.float32)) is None


def test_damaged_weights_are_an_error() -> None:
    broken = likeness.Encoder("broken", lambda _: vector(np.nan, 1.0))
    with pytest.raises(UserError, match="its weights are damaged"):
        likeness.embed(broken, np.ones(24_000, np.float32))


def test_the_spectral_vector_does_not_depend_on_the_volume() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 24_000).astype(np.float32)
    np.testing.assert_allclose(likeness.mfcc_statistics(noise / 4), likeness.mfcc_statistics(noise), atol=1e-2)
